"""Whether a drafter that runs a model is worth running, by request and round; the judge of a choice (drafters.choice).

It is where the tokens of its rounds come faster than those of the draft in hand, by what passes of both models cost here
with as many requests as are live. Before it has run for a request, how sure the target was of its own tokens tells what it
will earn: where the target hesitates, another model guesses something else. What it earned is remembered by that.

Reading a text for it is a purchase for an answer of unknown length, so it waits until it would have paid for itself on the
answer so far (ski rental: Karlin et al., Algorithmica 1988): wherever the answer ends, hardly more is lost than was to be
gained. What does not pay is tried again now and then, but not while other requests would have to wait for it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forerun.controllers.costs import CostCurve
from forerun.controllers.earnings import Earnings
from forerun.core.draft import Draft
from forerun.core.request import Request
from forerun.core.step import StepResult

# A rate must be this much better than the draft in hand's, and so much before a text is read for it: beliefs are rough.
_MARGIN, _CLEAR = 1.01, 1.1
# Most levels that it may draft.
_DEEPEST = 8
# What it is believed to earn before it has run: a round of three levels and nodes, and one token more by this much for how
# sure the target is (Qwen2.5-Coder 1.5B and 0.5B, LOG.md).
_BELIEVED_LEVELS, _BELIEVED_GAIN = 3.0, 2.2
# What the cheap drafter that it stands beside is believed to earn: tokens and nodes a round.
_CHEAP_TOKENS, _CHEAP_NODES = 1.2, 2.0
# Requests are told apart by these steps of sureness; how sure a target is believed to be, worth so many rows, and how many
# rows tell it, these included.
_SURENESS = (0.25, 0.45, 0.55, 0.65, 0.75, 0.85)
_SURE, _SURE_WEIGHT, _SURE_ROWS = 0.75, 4, 32
_MIDDLES = [(low + high) / 2 for low, high in itertools.pairwise((0.0, *_SURENESS, 1.0))]
# A level, and reading one more token of a text, are believed to cost these shares of a plain pass.
_BELIEVED_LEVEL, _BELIEVED_READING = 0.3, 0.04
# Where its costs were measured, those of reading are told by a pass of so many rows; how fast what is believed of them moves.
_CHUNK, _PACE = 32, 0.3
# Reading that costs no more than a plain pass, or this share of the answer so far, is not worth a thought; and what took
# less than this share of a level was no run.
_TRIFLE, _NOTHING = 0.02, 0.1
# So few unread tokens ride along in the first level; of more than so many, the time that they took can be told.
_FREE, _MUCH = 8, 64


@dataclass
class Told:
    """What is known of one request: what the dear drafter and the cheap one earned for it, how sure the target was of its
    tokens; `alike`, what the dear one earned for requests of the same sureness, once it has run; and the `levels` that it
    drafted in this round."""

    earnings: Earnings
    cheap: Earnings
    alike: Earnings | None = None
    levels: int = 0
    sureness: float = _SURE
    watched: int = _SURE_WEIGHT


class DearJudge:
    """Knows what passes cost, and what rounds with a model that drafts have earned.

    curve, level: what passes of the target cost, and of the model; believed to be a share of the former if not given.
    in_hand: the rate of a draft, in tokens per second, if all live requests had the same.
    """

    def __init__(self, curve: CostCurve, level: CostCurve | None, in_hand: Callable[[Draft], float]) -> None:
        self.live = 1
        # Seconds of this round that went into reading text: paid once for all rounds to come.
        self.caught_up = 0.0
        self._curve = curve
        self._level = level or CostCurve({1: _BELIEVED_LEVEL * curve(1)})
        self._reading = _BELIEVED_READING * curve(1) if level is None else level(_CHUNK) / _CHUNK
        self._in_hand = in_hand
        self._told: dict[int, Told] = {}
        self._cheap = Earnings(_CHEAP_TOKENS, _CHEAP_NODES)
        self._all = _believed(_SURE)
        self._by_sureness = [_believed(sure) for sure in _MIDDLES]

    def begin(self, live: Sequence[Request]) -> None:
        """A round of these requests."""
        self.live = max(1, len(live))
        self.caught_up = 0.0
        for request in live:
            self._of(request).levels = 0  # left over where the round before failed

    def depths(self, requests: Sequence[Request], cheap: Sequence[Draft], unread: Sequence[int]) -> list[int]:
        """How many levels the dear drafter may add to each request's draft in hand; 0 where it is not worth running.

        unread: tokens of each text that it would have to read first.
        """
        wanted = [self._depth(*given) for given in zip(requests, cheap, unread, strict=True)]
        return wanted if self._pays_together(requests, wanted) else [0] * len(wanted)

    def threshold(self) -> float:
        """The chance below which a node is not worth another level of the dear drafter: its cost at today's rate."""
        live, curve = self.live, self._curve
        rate = max(self._rate(self._all), live / curve(live))
        row = (curve(live + 7) - curve(live + 3)) / 4
        return min(0.95, rate * (self._level(live) / live + row))

    def watches(self, request: Request) -> bool:
        """Whether it helps to know how sure the target is: for a while, until the dear drafter has run."""
        told = self._of(request)
        return told.alike is None and told.watched < _SURE_ROWS

    def watched(self, request: Request, sureness: float) -> None:
        """The chance that the target gave its likeliest token."""
        told = self._of(request)
        told.watched += 1
        told.sureness += (sureness - told.sureness) / told.watched

    def spent(self, requests: Sequence[Request], drafts: Sequence[Draft], read: Sequence[int], seconds: float) -> None:
        """What the dear drafter proposed when it was asked for these requests, and in which time, with so much reading.

        Where next to no time was spent, it had no need to run, or could not; that says nothing of it.
        """
        if seconds < _NOTHING * self._level(1):
            return
        levels = max(1, max((max(draft.depths, default=0) for draft in drafts), default=0))
        tokens = sum(max(0, count - _FREE) for count in read)
        much = tokens > _MUCH
        if much:
            drafting = levels * self._level(len(requests))
            self._reading += _PACE * (max(0.0, seconds - drafting) / tokens - self._reading)
        self.caught_up = min(tokens * self._reading, 0.95 * seconds)
        if not much:
            self._level.observe(len(requests), (seconds - self.caught_up) / levels)
        for request in requests:
            told = self._of(request)
            told.levels = levels
            told.alike = told.alike or self._alike(told)

    def ran(self, request: Request) -> bool:
        """Whether it was asked for the request in this round."""
        return self._of(request).levels > 0

    def observe(self, result: StepResult) -> None:
        """Learn what a round of a request wrote."""
        told = self._of(result.request)
        counted = [told.cheap, self._cheap]
        if told.levels and told.alike is not None:
            counted = [told.earnings, told.alike, self._all]
        for earnings in counted:
            earnings.add(len(result.tokens), len(result.draft), told.levels)
        told.levels = 0

    def forget(self, request: Request) -> None:
        told = self._told.pop(id(request), None)
        if told is None or told.alike is not None:
            return
        # An answer for which it did not run: what it failed at is forgotten a little, less where the answer was short.
        record, believed = self._alike(told), _believed(told.sureness)
        if self._rate(record) < self._rate(believed):
            record.fade(believed, min(1.0, (told.watched - _SURE_WEIGHT) / (_SURE_ROWS - _SURE_WEIGHT)))

    def _depth(self, request: Request, cheap: Draft, unread: int) -> int:
        """What one request wants, if all live ones were like it."""
        told = self._of(request)
        if told.alike is None:
            told.earnings.follow(self._alike(told))
        # An answer's last token needs no draft, and before its first one nothing is known of it.
        most = _DEEPEST if request.remaining is None else min(_DEEPEST, request.remaining - 1)
        if most <= 0 or not request.generated:
            return 0
        pays = self._rate(told.earnings) > _MARGIN * self._in_hand(cheap)
        # Others would have to wait for what is only tried.
        tries = told.earnings.due(pays) and self.live == 1
        cost = self._reading * max(0, unread - _FREE)
        if cost <= max(1.0, _TRIFLE * request.generated) * self._curve(1):
            return most if pays or tries else 0
        return most if pays and self._repays(request, told, cost) else 0

    def _pays_together(self, requests: Sequence[Request], wanted: Sequence[int]) -> bool:
        """Whether those that want it bring more than it costs all, who wait for it."""
        asking = sum(depth > 0 for depth in wanted)
        if not asking or len(requests) == 1:
            return True
        told = [self._of(request) for request in requests]
        without = [one.cheap for one in told]
        chosen = [one.earnings if depth else one.cheap for one, depth in zip(told, wanted, strict=True)]
        levels = max(one.levels for one in chosen) * self._level(asking)
        return self._together(chosen, levels) > _MARGIN * self._together(without, 0.0)

    def _together(self, earnings: Sequence[Earnings], seconds: float) -> float:
        """Tokens per second of a pass for requests that earn so, with `seconds` spent before it."""
        return sum(one.tokens for one in earnings) / self._seconds(earnings, seconds)

    def _seconds(self, earnings: Sequence[Earnings], seconds: float) -> float:
        return self._curve(sum(1.0 + one.nodes for one in earnings)) + seconds

    def _rate(self, earnings: Earnings) -> float:
        """Tokens per second, if all live requests earned the same."""
        return self._together([earnings] * self.live, earnings.levels * self._level(self.live))

    def _repays(self, request: Request, told: Told, cost: float) -> bool:
        """Whether seconds spent on reading a text for the dear drafter are repaid by what it gains over the cheap one, if
        the answer goes on for as long as it has."""
        ahead = request.generated if request.remaining is None else min(request.generated, request.remaining)
        # The others of a batch gain nothing by it, and wait.
        others = [told.cheap] * (self.live - 1)
        with_it, levels = [*others, told.earnings], told.earnings.levels * self._level(1)
        seconds = self._seconds(with_it, levels)
        tokens = sum(one.tokens for one in with_it)
        saved = tokens / self._together([*others, told.cheap], 0.0) - _CLEAR * seconds  # a round
        return ahead * saved / told.earnings.tokens > cost

    def _of(self, request: Request) -> Told:
        if id(request) not in self._told:
            self._told[id(request)] = Told(_believed(_SURE).own(), self._cheap.own())
        return self._told[id(request)]

    def _alike(self, told: Told) -> Earnings:
        """What the dear drafter earned where the target was as sure."""
        return self._by_sureness[bisect_right(_SURENESS, told.sureness)]


def _believed(sureness: float) -> Earnings:
    """What the dear drafter is believed to earn before it has run."""
    return Earnings(1.0 + _BELIEVED_GAIN * sureness, _BELIEVED_LEVELS, _BELIEVED_LEVELS)
