"""Text that the caller expects back, as a draft: an edited file, a filled template (the OpenAI `prediction` field).

A pointer follows the output through the prediction. Where the output departs from it the pointer is put back as soon as
the output's last tokens are found in the prediction again, nearest ahead first. Until then the draft guesses that one
token was replaced, or one was put in: a tree of both. Scores are hit rates by how long the two have agreed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from forerun.core.draft import EMPTY, Draft
from forerun.core.step import StepResult
from forerun.core.transcript import Transcript
from forerun.drafters.base import Session, SessionDrafter
from forerun.drafters.rates import hit_rates
from forerun.drafters.tree import grow

# Tokens at the output's end that are looked for in the prediction, at most.
_LONGEST = 5
# How far ahead one or two tokens alone may put the pointer; longer matches may put it anywhere.
_REACH = {1: 12, 2: 60}
# How many tokens in a row may have been replaced.
_LOST = 8
# Kinds of guess: by how many tokens before it agreed, in these steps; then the very first one, and one after an insertion.
_AGREED = (1, 2, 3, 4, 8, 16)
_START = len(_AGREED) + 1
_INSERTED = len(_AGREED) + 2

# Next token of the prediction, how many tokens before it agreed (-1: nothing written yet), and where that last was so.
Pointer = tuple[int, int, int]
Place = tuple[int, int, int]  # next token, kind of guess, tokens agreed


class PredictionSession(Session):
    def __init__(self, drafter: PredictionDrafter, transcript: Transcript) -> None:
        super().__init__(transcript)
        self._rates = drafter.rates
        self._usable = drafter.usable
        self._expected = tuple(transcript.request.prediction)
        self._where: dict[tuple[int, ...], list[int]] = {}
        for end in range(1, len(self._expected)):
            for size in range(1, min(_LONGEST, end) + 1):
                self._where.setdefault(self._expected[end - size : end], []).append(end)
        self._pointer: Pointer = (0, -1, 0)
        self._read = len(transcript.request.prompt)

    def draft(self, path: Sequence[int], nodes: int) -> Draft:
        """A tree of at most `nodes` nodes."""
        if not self._expected:
            return EMPTY
        self._catch_up()
        pointer, tail = self._pointer, [*self.transcript.tokens[-_LONGEST:], *path]
        for end in range(len(tail) - len(path) + 1, len(tail) + 1):
            pointer = self._advance(pointer, tail[:end])
        at, agreed, _ = pointer
        starts: list[Place] = [(at, self._kind(agreed), agreed)]
        if agreed == 0 and at > 0:
            starts.append((at - 1, _INSERTED, 0))
        return grow(starts, self._children, nodes, "prediction", floor=0.02)

    def _children(self, places: list[Place]) -> list[tuple[int, float, list[Place]]]:
        found: list[tuple[int, float, list[Place]]] = []
        for at, kind, agreed in places:
            if at < len(self._expected) and all(token != self._expected[at] for token, _, _ in found):
                token, more = self._expected[at], max(agreed, 0) + 1
                if token < self._usable:
                    found.append((token, self._rates[kind].value, [(at + 1, self._kind(more), more)]))
        found.sort(key=lambda child: -child[1])
        return found

    @staticmethod
    def _kind(agreed: int) -> int:
        return _START if agreed < 0 else bisect_right(_AGREED, agreed)

    def _advance(self, pointer: Pointer, tail: Sequence[int]) -> Pointer:
        """The pointer after the last token of `tail`."""
        at, agreed, home = pointer
        if at < len(self._expected) and self._expected[at] == tail[-1]:
            return at + 1, max(agreed, 0) + 1, at + 1
        for size in range(min(_LONGEST, len(tail)), 0, -1):
            ends = self._where.get(tuple(tail[len(tail) - size :]))
            if ends is None:
                continue
            ahead = bisect_left(ends, home)
            reach = _REACH.get(size)
            if ahead < len(ends) and (reach is None or ends[ahead] - at <= reach):
                return ends[ahead], size, ends[ahead]
            if reach is None:
                return ends[-1], size, ends[-1]
        # Nothing of it is found: take this token for a replaced one, until too many are.
        return (min(at + 1, home + _LOST, len(self._expected)), 0, home) if agreed >= 0 else pointer

    def _catch_up(self) -> None:
        tokens = self.transcript.tokens
        for end in range(self._read, len(tokens)):
            at, agreed, _ = self._pointer
            if at < len(self._expected):
                self._rates[self._kind(agreed)].add(self._expected[at] == tokens[end])
            if agreed == 0 and at > 0:
                self._rates[_INSERTED].add(self._expected[at - 1] == tokens[end])
            first = max(len(self.transcript.request.prompt), end + 1 - _LONGEST)
            self._pointer = self._advance(self._pointer, tokens[first : end + 1])
        self._read = len(tokens)

    def observe(self, result: StepResult) -> None:  # noqa: ARG002
        if self._expected:
            self._catch_up()


class PredictionDrafter(SessionDrafter[PredictionSession]):
    """Drafts from the prediction of a request; silent for requests without one. `usable`: the target's ids that are tokens."""

    name = "prediction"
    shares_memory = True

    def __init__(self, usable: int) -> None:
        self.usable = usable
        self.rates = hit_rates([0.3, 0.4, 0.55, 0.7, 0.8, 0.9, 0.95, 0.7, 0.2])

    def open(self, transcript: Transcript) -> PredictionSession:
        return PredictionSession(self, transcript)

    def draft(self, session: PredictionSession, path: Sequence[int], nodes: int) -> Draft:
        return session.draft(path, nodes)
