"""Draft as much as pays: tokens per second, over all live requests together (after SmartSpec's goodput, 2406.14066).

With E expected tokens of a pass, T(rows) its measured cost and D the seconds already spent on drafting, nodes are added
best-first by calibrated chance of acceptance, over all requests at once, and the pass is cut where

    E(k) / (T(rows + k) + D),   E(k) = requests + sum of the k best nodes' chances

is largest; k = 0 is plain decoding. Drafters that cost next to nothing are always asked, so their chances are known even
while nothing is verified, and a gate on what really happened has the last word about them. A drafter that runs a model is
asked where what it earned lately beats the draft in hand (drafters.choice), and goes a level deeper while that pays.

Before it has run for a request, how sure the target was of its own tokens tells what it will earn: where the target
hesitates, another model guesses something else. What it earned is remembered by that. Reading a text for it is a purchase
for an answer of unknown length, so it waits until it would have paid for itself on the answer so far (ski rental: Karlin
et al., Algorithmica 1988), and twice over, since most answers are short.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forerun.controllers.calibration import Calibration
from forerun.controllers.costs import CostCurve
from forerun.controllers.earnings import Earnings
from forerun.controllers.gate import Gate
from forerun.core.draft import EMPTY, ROOT, Draft
from forerun.core.outcome import Outcome
from forerun.core.request import Request

# A rate must be this much better than plain decoding's before speculation is worth its risk.
_MARGIN = 1.01
# Most levels that a drafter with a model of its own may draft.
_DEEPEST = 8
# What such a drafter is believed to earn before it has run: a round of three levels, four rows of the target, and one
# token more by this much for how sure the target is (Qwen2.5-Coder 1.5B and 0.5B, LOG.md).
_BELIEVED_LEVELS, _BELIEVED_GAIN = 3, 2.2
# What the cheap drafter that it stands beside is believed to earn: tokens a round, in plain passes.
_CHEAP_TOKENS, _CHEAP_COST = 1.2, 1.05
# Requests are told apart by these steps of sureness; how sure a target is believed to be, worth so many rows, and how many
# rows tell it.
_SURENESS = (0.25, 0.45, 0.55, 0.65, 0.75, 0.85)
_SURE, _SURE_WEIGHT, _SURE_ROWS = 0.75, 4, 32
_MIDDLES = [(low + high) / 2 for low, high in itertools.pairwise((0.0, *_SURENESS, 1.0))]
# How fast the mean costs of a level and of a token read move.
_PACE = 0.08
# A level, and reading one more token of a text, are believed to cost such a drafter these shares of a plain pass.
_BELIEVED_LEVEL, _BELIEVED_READING = 0.3, 0.04
# Where its costs were measured, those of reading are told by a pass of so many rows.
_CHUNK = 32
# How many times over reading a text for it must be repaid, if the answer goes on for as long as it has.
_CAUTION = 2.0
# So few unread tokens ride along in the first level; of more than so many, the time that they took can be told.
_FREE, _MUCH = 8, 64


@dataclass
class Held:
    """What is remembered of one request: its gate, its last draft (also what was not verified), how sure the target was of
    its tokens, and what its dear drafter and the cheap one earned; `alike` is what the dear one earned for requests of the
    same sureness, once it has run. `spent` is what it took of this round, `read` how much of the text it has read."""

    gate: Gate
    earnings: Earnings
    cheap: Earnings
    draft: Draft = EMPTY
    alike: Earnings | None = None
    spent: float = 0.0
    read: int = 0
    sureness: float = _SURE
    watched: int = _SURE_WEIGHT


class Goodput:
    """Sizes drafts by what they are expected to earn.

    curve, dear: what passes of the target cost, and of the model that drafts, if one does. nodes: most nodes per request
    and round. reads: whether the model that drafts has to read each text itself. It is also the judge of a choice between a
    cheap drafter and a dear one (drafters.choice).
    """

    name = "goodput"

    def __init__(self, curve: CostCurve, nodes: int = 16, dear: CostCurve | None = None, *, reads: bool = True) -> None:
        self.curve = curve
        self._reads = reads
        self.nodes = nodes
        self.calibration = Calibration()
        self._held: dict[int, Held] = {}
        self._cheap = Earnings(_CHEAP_TOKENS, _CHEAP_COST * curve(1))
        self._level = _BELIEVED_LEVEL * curve(1) if dear is None else dear(1)
        self._reading = _BELIEVED_READING * curve(1) if dear is None else dear(_CHUNK) / _CHUNK
        self._earnings = self._believed(_SURE)
        # The same by how sure the target is: what nobody can foresee says nothing of other texts.
        self._by_sureness = [self._believed(sure) for sure in _MIDDLES]
        # Seconds of this round that went into reading text: paid once for all rounds to come.
        self._caught_up = 0.0

    def budgets(self, live: Sequence[Request]) -> list[int]:
        # Left over where the round before failed.
        self._caught_up = 0.0
        for request in live:
            self._of(request).spent = 0.0
        return [self.nodes] * len(live)

    def trim(self, live: Sequence[Request], drafts: Sequence[Draft], seconds: float) -> list[Draft]:
        for request, draft in zip(live, drafts, strict=True):
            self._of(request).draft = draft
        open_ = [
            draft if len(draft) and self._allows(self._of(request)) else EMPTY
            for request, draft in zip(live, drafts, strict=True)
        ]
        kept = self._best(len(live), open_, max(0.0, seconds - self._caught_up))
        return [draft.keep(sorted(nodes)) for draft, nodes in zip(open_, kept, strict=True)]

    def depth(self, request: Request, cheap: Draft) -> int:
        """How many levels the dear drafter may add to the draft in hand; 0 where it is not worth running."""
        held = self._of(request)
        if held.alike is None:
            held.earnings.follow(self._alike(held))
        in_hand = max(rate for _, rate in self._rates(1, [cheap], 0.0))
        if not self._repays(request, held) or not held.earnings.worth(_MARGIN * in_hand):
            return 0
        return min(_DEEPEST, self.nodes)

    def watches(self, request: Request) -> bool:
        """Whether it helps to know how sure the target is: for a while, until the dear drafter has run."""
        held = self._of(request)
        return held.alike is None and held.watched < _SURE_ROWS

    def watched(self, request: Request, sureness: float) -> None:
        held = self._of(request)
        held.watched += 1
        held.sureness += (sureness - held.sureness) / held.watched

    def threshold(self) -> float:
        """The chance below which a node is not worth another level of the dear drafter: its cost at today's rate."""
        rate = max(self._earnings.rate, 1.0 / self.curve(1))
        return min(0.95, rate * (self._level + (self.curve(8) - self.curve(4)) / 4))

    def spent(self, requests: Sequence[Request], drafts: Sequence[Draft], seconds: float) -> None:
        """What the dear drafter proposed when it was asked for these requests, and in which time."""
        levels = max(1, max((max(draft.depths, default=0) for draft in drafts), default=0))
        unread = sum(self._unread(request) for request in requests)
        much = unread > _MUCH
        if much:
            self._reading += 4 * _PACE * (max(0.0, seconds - levels * self._level) / unread - self._reading)
        self._caught_up = min(unread * self._reading, 0.95 * seconds)
        seconds -= self._caught_up
        if not much:
            self._level += _PACE * (seconds / levels - self._level)
        for request in requests:
            held = self._of(request)
            held.spent, held.read = seconds, len(request.tokens)
            held.alike = held.alike or self._alike(held)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        if not outcomes:
            return
        rows = sum(len(outcome.forced) + len(outcome.draft) for outcome in outcomes)
        seconds = outcomes[0].seconds
        self.curve.observe(rows, seconds.verify)
        decoding = [outcome for outcome in outcomes if outcome.decoded]
        drafting = max(0.0, seconds.draft - self._caught_up)
        self._caught_up = 0.0
        plain = self.curve(max(1, rows - sum(len(outcome.draft) for outcome in decoding)))
        for outcome in decoding:
            held = self._of(outcome.request)
            self.calibration.observe(held.draft, outcome.tokens)
            if len(outcome.draft) and not held.spent:
                # The pass is shared, so each request answers for the whole of it.
                held.gate.observe(len(outcome.tokens) - (seconds.verify + drafting) / plain)
            # In seconds of a pass for one request, so that earnings can be compared whatever the batch.
            alone = self.curve(1 + len(outcome.draft)) + held.spent
            if held.spent and held.alike is not None:
                counted = [held.earnings, held.alike, self._earnings]
            else:
                counted = [held.cheap, self._cheap]
            for earnings in counted:
                earnings.add(len(outcome.tokens), alone)
            held.draft, held.spent = EMPTY, 0.0

    def forget(self, request: Request) -> None:
        held = self._held.pop(id(request), None)
        if held is not None and held.alike is None:
            # An answer for which the dear drafter did not run: what it failed at is forgotten a little.
            self._alike(held).fade(self._believed(held.sureness))

    def _allows(self, held: Held) -> bool:
        """Whether a draft may be verified: the gate is for the cheap drafter, what the dear one earned speaks for it."""
        return held.spent > 0.0 or held.gate.allows()

    def _repays(self, request: Request, held: Held) -> bool:
        """Whether what the dear drafter has not read of the text is well repaid by what it gains over the cheap one."""
        cost = self._reading * self._unread(request)
        if cost <= self.curve(1):
            return True
        ahead = request.generated if request.remaining is None else min(request.generated, request.remaining)
        return ahead * (1.0 / held.cheap.rate - 1.0 / held.earnings.rate) > _CAUTION * cost

    def _unread(self, request: Request) -> int:
        """Tokens of the text that the dear drafter would have to read before its first level."""
        if not self._reads:
            return 0
        return max(0, len(request.tokens) - self._of(request).read - _FREE)

    def _of(self, request: Request) -> Held:
        if id(request) not in self._held:
            self._held[id(request)] = Held(Gate(), self._earnings.own(), self._cheap.own())
        return self._held[id(request)]

    def _alike(self, held: Held) -> Earnings:
        """What the dear drafter earned where the target was as sure."""
        return self._by_sureness[bisect_right(_SURENESS, held.sureness)]

    def _believed(self, sureness: float) -> Earnings:
        """What the dear drafter is believed to earn before it has run."""
        seconds = self.curve(1 + _BELIEVED_LEVELS) + _BELIEVED_LEVELS * self._level
        return Earnings(1.0 + _BELIEVED_GAIN * sureness, seconds)

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
