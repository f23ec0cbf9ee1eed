"""Draft as much as pays: tokens per second, over all live requests together (after SmartSpec's goodput, 2406.14066).

With E expected tokens of a pass, T(rows) its measured cost and D the seconds already spent on drafting, nodes are added
best-first by calibrated chance of acceptance, over all requests at once, and the pass is cut where

    E(k) / (T(rows + k) + D),   E(k) = requests + sum of the k best nodes' chances

is largest; k = 0 is plain decoding. Drafters that cost next to nothing are always asked, so their chances are known even
while nothing is verified, and a gate on what really happened has the last word about them. A drafter that runs a model is
asked where what it earned lately beats the draft in hand (controllers.dear), and goes a level deeper while that pays.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forerun.controllers.calibration import Calibration
from forerun.controllers.costs import CostCurve
from forerun.controllers.dear import DearJudge
from forerun.controllers.gate import Gate
from forerun.core.draft import EMPTY, ROOT, Draft
from forerun.core.request import Request
from forerun.core.step import StepResult

# A rate must be this much better than plain decoding's before speculation is worth its risk.
_MARGIN = 1.01


@dataclass
class Held:
    """What is remembered of one request: its gate, and its last draft, also what was not verified."""

    gate: Gate
    draft: Draft = EMPTY


class Goodput:
    """Sizes drafts by what they are expected to earn.

    curve, dear: what passes of the target cost, and of the model that drafts, if one does. nodes: most nodes per request
    and round. judge: of a choice between a cheap drafter and a dear one.
    """

    name = "goodput"

    def __init__(self, curve: CostCurve, nodes: int = 16, dear: CostCurve | None = None) -> None:
        self.curve = curve
        self.nodes = nodes
        self.calibration = Calibration()
        self.judge = DearJudge(curve, dear, self._in_hand)
        self._held: dict[int, Held] = {}

    def budgets(self, live: Sequence[Request]) -> list[int]:
        self.judge.begin(live)
        return [self.nodes] * len(live)

    def trim(self, live: Sequence[Request], drafts: Sequence[Draft], seconds: float) -> list[Draft]:
        for request, draft in zip(live, drafts, strict=True):
            self._of(request).draft = draft
        open_ = [
            draft if len(draft) and self._allows(request, draft) else EMPTY
            for request, draft in zip(live, drafts, strict=True)
        ]
        kept = self._best(len(live), open_, max(0.0, seconds - self.judge.caught_up))
        return [draft.keep(sorted(nodes)) for draft, nodes in zip(open_, kept, strict=True)]

    def observe(self, results: Sequence[StepResult]) -> None:
        if not results:
            return
        rows = sum(len(result.input_tokens) + len(result.draft) for result in results)
        seconds = results[0].seconds
        self.curve.observe(rows, seconds.verify)
        decoding = [result for result in results if result.decoded]
        drafting = max(0.0, seconds.draft - self.judge.caught_up)
        plain = self.curve(max(1, rows - sum(len(result.draft) for result in decoding)))
        for result in decoding:
            held = self._of(result.request)
            self.calibration.observe(held.draft, result.tokens)
            if len(result.draft) and not self.judge.ran(result.request):
                # The pass is shared, so each request answers for the whole of it.
                held.gate.observe(len(result.tokens) - (seconds.verify + drafting) / plain)
            self.judge.observe(result)
            held.draft = EMPTY

    def forget(self, request: Request) -> None:
        self._held.pop(id(request), None)
        self.judge.forget(request)

    def _allows(self, request: Request, draft: Draft) -> bool:
        """Whether a draft may be verified: the gate is for the cheap drafter, what the dear one earned speaks for it."""
        gate = self._of(request).gate
        if self.judge.ran(request) or gate.open:
            return True
        live = self.judge.live
        return gate.allows(self._in_hand(draft) * self.curve(live) / live - 1.0)

    def _of(self, request: Request) -> Held:
        if id(request) not in self._held:
            self._held[id(request)] = Held(Gate())
        return self._held[id(request)]

    def _in_hand(self, draft: Draft) -> float:
        """The best rate of a draft, in tokens per second, if all live requests had the same."""
        return max(rate for _, rate in self._rates(1, [draft], 0.0, alike=self.judge.live))

    def _best(self, requests: int, drafts: Sequence[Draft], seconds: float) -> list[list[int]]:
        """Nodes to verify per draft: the best-first order over all drafts, cut where the rate is largest."""
        order = list(self._best_first(drafts))
        best, best_rate = 0, 0.0
        for count, rate in self._rates(requests, drafts, seconds, order):
            if rate > (_MARGIN if best == 0 and count > 0 else 1.0) * best_rate:
                best, best_rate = count, rate
        kept: list[list[int]] = [[] for _ in drafts]
        for index, node, _ in order[:best]:
            kept[index].append(node)
        return kept

    def _rates(
        self,
        requests: int,
        drafts: Sequence[Draft],
        seconds: float,
        order: Sequence[tuple[int, int, float]] | None = None,
        *,
        alike: int = 1,
    ) -> Iterator[tuple[int, float]]:
        """(nodes, tokens per second) for each cut of the best-first order, none first; `seconds` are spent already.

        alike: how many times over these requests, with their drafts, are in the pass.
        """
        expected = float(requests)
        yield 0, alike * expected / (self.curve(alike * requests) + seconds)
        for count, (_, _, chance) in enumerate(self._best_first(drafts) if order is None else order, start=1):
            expected += chance
            yield count, alike * expected / (self.curve(alike * (requests + count)) + seconds)

    def _best_first(self, drafts: Sequence[Draft]) -> Iterator[tuple[int, int, float]]:
        """(draft, node, chance) in falling order of chance; a node comes after its parent and, where it was drawn, after
        the siblings drawn before it."""
        heap: list[tuple[float, int, int]] = []
        chances = [self.calibration.reached(draft) for draft in drafts]
        for index, draft in enumerate(drafts):
            _open(heap, index, draft, chances[index], ROOT)
        while heap:
            negative, index, node = heapq.heappop(heap)
            yield index, node, -negative
            draft = drafts[index]
            _open(heap, index, draft, chances[index], node)
            if draft.q is not None:
                siblings = draft.children(draft.parents[node])
                after = siblings[siblings.index(node) + 1 : siblings.index(node) + 2]
                for sibling in after:
                    heapq.heappush(heap, (max(negative, -chances[index][sibling]), index, sibling))


def _open(heap: list[tuple[float, int, int]], index: int, draft: Draft, chances: Sequence[float], parent: int) -> None:
    """Make the children of a node available: all of them, or the first where they were drawn in order."""
    children = draft.children(parent)
    for child in children if draft.q is None else children[:1]:
        heapq.heappush(heap, (-chances[child], index, child))
