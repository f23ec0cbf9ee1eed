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
from forerun.core.draft import EMPTY, Draft
from forerun.core.outcome import Outcome
from forerun.core.request import Request

# How fast running means of the drafter's cost and of its survival by depth move.
_RATE = 0.1
# A rate must be this much better than plain decoding's before speculation is worth its risk.
_MARGIN = 1.01
# Rounds between two looks at a drafter that is thought too dear to run.
_PROBE = 64


@dataclass
class Held:
    """What is remembered of one request: its gate, and the whole of its last draft (also what was not verified)."""

    gate: Gate = field(default_factory=Gate)
    draft: Draft = EMPTY


class Goodput:
    """Sizes drafts by what they are expected to earn. `nodes`: most nodes per request and round."""

    name = "goodput"

    def __init__(self, curve: CostCurve, nodes: int = 16) -> None:
        self.curve = curve
        self.nodes = nodes
        self.calibration = Calibration()
        self._held: dict[int, Held] = {}
        self._level_cost = 0.0
        self._survival = [0.6**depth for depth in range(1, nodes + 1)]
        self._since_probe = 0

    def budgets(self, live: Sequence[Request]) -> list[int]:
        depth = self._worthwhile_depth(len(live))
        return [self._budget(depth) if self._of(request).gate.allows() else 0 for request in live]

    def trim(self, live: Sequence[Request], drafts: Sequence[Draft], seconds: float) -> list[Draft]:
        levels = max((max(draft.depths, default=0) for draft in drafts), default=0)
        self._level_cost += _RATE * (seconds / max(1, levels) - self._level_cost)
        for request, draft in zip(live, drafts, strict=True):
            self._of(request).draft = draft
        kept = self._best(len(live), drafts, seconds)
        return [draft.keep(sorted(nodes)) for draft, nodes in zip(drafts, kept, strict=True)]

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
            self._survive(held.draft, outcome)
            held.draft = EMPTY
            if len(outcome.draft):
                # The pass is shared, so each request answers for the whole of it.
                held.gate.observe(len(outcome.tokens) - (seconds.verify + seconds.draft) / plain)

    def forget(self, request: Request) -> None:
        self._held.pop(id(request), None)

    def _of(self, request: Request) -> Held:
        return self._held.setdefault(id(request), Held())

    def _budget(self, depth: int) -> int:
        """All the nodes allowed from a drafter that costs nothing; else as deep as pays, and now and then a probe."""
        if depth > 0:
            self._since_probe = 0
            return depth if self._dear() else self.nodes
        self._since_probe += 1
        if self._since_probe >= _PROBE:
            self._since_probe = 0
            return min(2, self.nodes)
        return 0

    def _dear(self) -> bool:
        """Whether a level of drafting costs enough to be counted before it is spent."""
        return self._level_cost > 0.02 * self.curve(1)

    def _worthwhile_depth(self, requests: int) -> int:
        """The depth of chains, the same for all, that gives the best rate at the drafter's usual cost and chances."""
        if not self._dear():
            return self.nodes
        best, best_rate = 0, _MARGIN * requests / self.curve(requests)
        expected = 1.0
        for depth, survives in enumerate(self._survival, start=1):
            expected += survives
            rate = requests * expected / (self.curve(requests * (1 + depth)) + self._level_cost * depth)
            if rate > best_rate:
                best, best_rate = depth, rate
        return best

    def _best(self, requests: int, drafts: Sequence[Draft], seconds: float) -> list[list[int]]:
        """Nodes to verify per draft: the best-first order over all drafts, cut where the rate is largest."""
        order = list(self._best_first(drafts))
        expected = float(requests)
        best, best_rate = 0, _MARGIN * expected / (self.curve(requests) + seconds)
        for count, (_, _, chance) in enumerate(order, start=1):
            expected += chance
            rate = expected / (self.curve(requests + count) + seconds)
            if rate > best_rate:
                best, best_rate = count, rate
        kept: list[list[int]] = [[] for _ in drafts]
        for index, node, _ in order[:best]:
            kept[index].append(node)
        return kept

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

    def _survive(self, draft: Draft, outcome: Outcome) -> None:
        """Update how often drafts are still right at each depth, as far as the written tokens tell."""
        if not len(draft):
            return
        on_path, reached = {-1}, 0
        for node, (token, parent, depth) in enumerate(zip(draft.tokens, draft.parents, draft.depths, strict=True)):
            if parent in on_path and depth <= len(outcome.tokens) and token == outcome.tokens[depth - 1]:
                on_path.add(node)
                reached = max(reached, depth)
        told = len(outcome.tokens) if len(outcome.draft) else 1
        for depth in range(1, min(max(draft.depths), told, self.nodes) + 1):
            self._survival[depth - 1] += _RATE * ((depth <= reached) - self._survival[depth - 1])


def _open(heap: list[tuple[float, int, int]], index: int, draft: Draft, chances: Sequence[float], parent: int) -> None:
    """Make the children of a node available: all of them, or the first where they were drawn in order."""
    children = draft.children(parent)
    for child in children if draft.q is None else children[:1]:
        heapq.heappush(heap, (-chances[child], index, child))
