"""Draft as much as pays: tokens per second, over all live requests together (after SmartSpec's goodput, 2406.14066).

With E expected tokens of a pass, T(rows) its measured cost and D the seconds already spent on drafting, nodes are added
best-first by calibrated chance of acceptance, over all requests at once, and the pass is cut where

    E(k) / (T(rows + k) + D),   E(k) = requests + sum of the k best nodes' chances

is largest; k = 0 is plain decoding. Before drafting, the same rate at the drafter's measured cost per level and its
usual chances by depth says whether to draft at all, and how deep. A gate on what really happened has the last word.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from forerun.controllers.calibration import Calibration
from forerun.controllers.costs import CostCurve
from forerun.controllers.gate import Gate
from forerun.controllers.levels import Levels
from forerun.core.draft import EMPTY, Draft
from forerun.core.outcome import Outcome
from forerun.core.request import Request

# A rate must be this much better than plain decoding's before speculation is worth its risk.
_MARGIN = 1.01
# Rounds between two looks at a drafter that is thought too dear to run.
_PROBE = 64


@dataclass
class Held:
    """What is remembered of one request: its gate, the whole of its last draft (also what was not verified), and the
    part that a dear drafter made."""

    gate: Gate = field(default_factory=Gate)
    draft: Draft = EMPTY
    dear: Draft = EMPTY


class Goodput:
    """Sizes drafts by what they are expected to earn. `nodes`: most nodes per request and round.

    It is also the judge of a choice between a cheap drafter and a dear one (drafters.choice).
    """

    name = "goodput"

    def __init__(self, curve: CostCurve, nodes: int = 16) -> None:
        self.curve = curve
        self.nodes = nodes
        self.calibration = Calibration()
        self._held: dict[int, Held] = {}
        self._whole = Levels(nodes)
        self._dear = Levels(nodes)
        self._since_probe = 0
        self._judges = False

    def budgets(self, live: Sequence[Request]) -> list[int]:
        depth = self.nodes if self._judges or not self._whole.dear(self.curve) else self._probed(self._whole, len(live))
        return [depth if self._of(request).gate.allows() else 0 for request in live]

    def trim(self, live: Sequence[Request], drafts: Sequence[Draft], seconds: float) -> list[Draft]:
        if any(len(draft) for draft in drafts):
            self._whole.spent(seconds, drafts)
        for request, draft in zip(live, drafts, strict=True):
            self._of(request).draft = draft
        kept = self._best(len(live), drafts, seconds)
        return [draft.keep(sorted(nodes)) for draft, nodes in zip(drafts, kept, strict=True)]

    def depth(self, request: Request, cheap: Draft) -> int:
        """How many levels of the dear drafter are worth more than the draft in hand; 0 is none. A judge's first question."""
        self._judges = True
        in_hand = max(rate for _, rate in self._rates(1, [cheap], 0.0))
        depth, rate = self._dear.best_depth(self.curve, 1)
        if depth > 0 and rate > _MARGIN * in_hand:
            return depth
        return self._probe() if len(cheap) == 0 or in_hand <= 1.0 / self.curve(1) else 0

    def spent(self, requests: Sequence[Request], drafts: Sequence[Draft], seconds: float) -> None:
        """What the dear drafter proposed, and in which time."""
        self._dear.spent(seconds, drafts)
        for request, draft in zip(requests, drafts, strict=True):
            self._of(request).dear = draft

    def threshold(self) -> float:
        """The chance below which a node of the dear drafter is not worth one more level: its cost at today's rate."""
        depth, rate = self._dear.best_depth(self.curve, 1)
        return min(0.95, rate * (self._dear.cost + self.curve(2 + depth) - self.curve(1 + depth)))

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        if not outcomes:
            return
        rows = sum(len(outcome.forced) + len(outcome.draft) for outcome in outcomes)
        seconds = outcomes[0].seconds
        self.curve.observe(rows, seconds.verify)
        decoding = [outcome for outcome in outcomes if outcome.decoded]
        plain = self.curve(max(1, rows - sum(len(outcome.draft) for outcome in decoding)))
        for outcome in decoding:
            held = self._of(outcome.request)
            self.calibration.observe(held.draft, outcome.tokens)
            self._whole.observe(held.draft, outcome.tokens)
            self._dear.observe(held.dear, outcome.tokens)
            held.draft = held.dear = EMPTY
            if len(outcome.draft):
                # The pass is shared, so each request answers for the whole of it.
                held.gate.observe(len(outcome.tokens) - (seconds.verify + seconds.draft) / plain)

    def forget(self, request: Request) -> None:
        self._held.pop(id(request), None)

    def _of(self, request: Request) -> Held:
        return self._held.setdefault(id(request), Held())

    def _probed(self, levels: Levels, requests: int) -> int:
        """The depth that pays, or now and then a probe where none does."""
        depth, rate = levels.best_depth(self.curve, requests)
        if depth > 0 and rate > _MARGIN * requests / self.curve(requests):
            self._since_probe = 0
            return depth
        return self._probe()

    def _probe(self) -> int:
        self._since_probe += 1
        if self._since_probe < _PROBE:
            return 0
        self._since_probe = 0
        return min(2, self.nodes)

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
    ) -> Iterator[tuple[int, float]]:
        """(nodes, tokens per second) for each cut of the best-first order, none first; `seconds` are spent already."""
        expected = float(requests)
        yield 0, expected / (self.curve(requests) + seconds)
        for count, (_, _, chance) in enumerate(self._best_first(drafts) if order is None else order, start=1):
            expected += chance
            yield count, expected / (self.curve(requests + count) + seconds)

    def _best_first(self, drafts: Sequence[Draft]) -> Iterator[tuple[int, int, float]]:
        """(draft, node, chance) in falling order of chance; a node comes after its parent and, where it was drawn, after
        the siblings drawn before it."""
        heap: list[tuple[float, int, int]] = []
        chances = [self.calibration.reached(draft) for draft in drafts]
        for index, draft in enumerate(drafts):
            _open(heap, index, draft, chances[index], -1)
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
