"""The suffix drafter: what followed the longest match of the text so far, in this text or in earlier requests.

SuffixDecoding (2411.04975) and SAM-Decoding (2411.10666). The draft is a tree: below a place, each token that followed
it has score count / total, times how often guesses from a match of that length have come true (learned as the text
goes, whether they were proposed or not). The tree grows best-first until the budget is used or nothing is likely to be
reached; its depth is at most `stretch` times the match. Of the text's own match and those in the shared history, the
one with the best first guess is unfolded; the text's own wins ties.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

from forerun.core.draft import EMPTY, Draft
from forerun.core.files import keep
from forerun.core.step import StepResult
from forerun.core.transcript import Transcript
from forerun.drafters.automaton import START, SuffixAutomaton
from forerun.drafters.base import Session, SessionDrafter
from forerun.drafters.history import Generation, History, Space
from forerun.drafters.rates import hit_rates
from forerun.drafters.tree import grow

# Kinds of guess: match length by these steps, and share of the count by those (a share of one by how often it was seen).
_LENGTHS = (2, 3, 4, 6, 9, 16)
_SHARES = (0.15, 0.3, 0.5, 0.75)
_KINDS = len(_SHARES) + 4
# Sources of a guess: the text itself, the shared history.
_LOCAL = 0
_SHARED = 1
# By source and match length: below it come the shares, above it how often a share of one was seen.
_FIRST = [
    [(source * (len(_LENGTHS) + 1) + bisect_right(_LENGTHS, length)) * _KINDS + len(_SHARES) for length in range(17)]
    for source in (_LOCAL, _SHARED)
]
# Continuations of one place that are proposed, at most.
_BRANCHES = 4

Match = tuple[int, int]  # state, length
Place = tuple[int, int, int]  # state, match length, levels left


def _score(guess: tuple[int, float, int]) -> float:
    return guess[1]


def kind(source: int, length: int, count: int, total: int) -> int:
    """Which rate a guess goes by: where from, after how long a match, how often it and anything followed."""
    first = _FIRST[source][length if length < 17 else 16]
    if total <= count:
        return first + (count if count < 3 else 3)
    return first - bisect_right(_SHARES, count / total)


class Guesses:
    """Scores of guesses, learned from the texts that went by."""

    def __init__(self) -> None:
        # A longer match is a better guess; so is a continuation that never was another one.
        trust = [0.35, 0.5, 0.6, 0.68, 0.76, 0.84, 0.9]
        shares = [0.85, 0.62, 0.4, 0.22, 0.08, 1.0, 1.05, 1.08]
        priors = [min(0.97, t * s) for t in trust for s in shares]
        self.rates = hit_rates(priors * 2)

    def score(self, source: int, length: int, count: int, total: int) -> float:
        return self.rates[kind(source, length, count, total)].value


class View:
    """A match in one automaton, as a place from which to guess."""

    def __init__(self, source: int, index: SuffixAutomaton, guesses: Guesses) -> None:
        self._source, self.index, self._guesses = source, index, guesses
        self._first = _FIRST[source]
        self.match: Match = (START, 0)
        # What followed the state looked at last: it is asked for again when the next token is learned.
        self._looked = self._when = -1
        self._found: tuple[list[tuple[int, int, int]], int] = ([], 0)

    def guesses(self, state: int, length: int) -> list[tuple[int, float, int]]:
        """(token, score, state after) of what followed, likeliest first."""
        followed, total = self._followed(state)
        rates, source = self._guesses.rates, self._source
        ranked = [(token, rates[kind(source, length, count, total)].value, after) for count, token, after in followed]
        if len(ranked) > 1:
            ranked.sort(key=_score, reverse=True)
        return ranked

    def learn(self, token: int) -> None:
        """Note how the first two guesses did, now that the next token is known."""
        state, length = self.match
        if state != START:
            followed, total = self._followed(state)
            rates, source = self._guesses.rates, self._source
            for count, guess, _ in followed[:2]:
                rates[kind(source, length, count, total)].add(guess == token)

    def _followed(self, state: int) -> tuple[list[tuple[int, int, int]], int]:
        """What followed a state, and how often it was followed by anything."""
        index = self.index
        if self._looked != state or self._when != index.clock:
            followed = index.likeliest(state, _BRANCHES)
            if len(followed) == 1:
                total = followed[0][0]
            else:
                total = sum([count for count, _, _ in followed])
                # Where some are left out, the state's own count, which the end of a text may make one too high.
                if len(followed) == _BRANCHES:
                    total = max(total, index.count[state])
            self._looked, self._when, self._found = state, index.clock, (followed, total)
        return self._found

    def unfold(self, place: Place) -> list[tuple[int, float, Place]]:
        """Children for `grow`."""
        state, length, left = place
        if left == 0:
            return []
        index = self.index
        token = index.only[state]
        if token >= 0:  # most states have one successor, and most of the time is spent here
            after = index.after[state]
            count = index.count[after]
            first = self._first[length if length < 17 else 16]
            score = self._guesses.rates[first + (count if count < 3 else 3)].value
            return [(token, score, (after, length + 1, left - 1))]
        return [(token, score, (after, length + 1, left - 1)) for token, score, after in self.guesses(state, length)]


class SuffixSession(Session):
    def __init__(self, drafter: SuffixDrafter, transcript: Transcript) -> None:
        super().__init__(transcript)
        self._drafter = drafter
        self._space = drafter.history.space(transcript.request.memory)
        self._guesses = drafter.guesses_of(self._space)
        self._own = View(_LOCAL, SuffixAutomaton(), self._guesses)
        self._last = START
        self._read = 0
        self._shared: list[tuple[Generation, View]] = []

    def _catch_up(self) -> None:
        """Read the tokens that were added, and put the matches behind them."""
        tokens, learns_from = self.transcript.tokens, len(self.transcript.request.prompt)
        own, index = self._own, self._own.index
        for at in range(self._read, len(tokens)):
            token = tokens[at]
            if at >= learns_from:
                own.learn(token)
                for _, view in self._shared:
                    view.learn(token)
            self._last = index.extend(self._last, token)
            link = index.link[self._last]
            own.match = (link, index.length[link])
            for _, view in self._shared:
                view.match = view.index.follow(*view.match, (token,))
        self._read = len(tokens)
        if tuple(generation for generation, _ in self._shared) != self._space.generations:
            self._look_again()

    def _look_again(self) -> None:
        """The history has other generations than before: find the matches in the new ones."""
        known = {id(generation): view for generation, view in self._shared}
        self._shared = []
        for generation in self._space.generations:
            view = known.get(id(generation))
            if view is None:
                view = View(_SHARED, generation.index, self._guesses)
                view.match = view.index.follow(START, 0, self.transcript.tokens[-self._drafter.longest :])
            self._shared.append((generation, view))

    def draft(self, path: Sequence[int], nodes: int) -> Draft:
        """A tree of at most `nodes` nodes."""
        self._catch_up()
        best: tuple[float, View, Match] | None = None
        for view in (self._own, *(view for _, view in self._shared)):
            state, length = view.index.follow(*view.match, path)
            if state != START:
                first = view.guesses(state, length)
                if first and (best is None or first[0][1] > best[0]):
                    best = (first[0][1], view, (state, length))
        if best is None:
            return EMPTY
        _, view, (state, length) = best
        levels = max(1, int(self._drafter.stretch * length))
        return grow((state, length, levels), view.unfold, nodes, "suffix", floor=self._drafter.floor)

    def observe(self, result: StepResult) -> None:  # noqa: ARG002
        self._catch_up()

    def finish(self) -> None:
        """Leave the output to later requests of the same memory."""
        start = max(0, len(self.transcript.request.prompt) - self._drafter.lead_in)
        if self.transcript.generated:
            self._space.add(self.transcript.tokens[start:])


class SuffixDrafter(SessionDrafter[SuffixSession]):
    """Drafts from the longest match in the text and in a history of earlier requests.

    history: shared memory; a fresh one by default. path: where it is written when the drafter is closed.
    floor: nodes less likely to be reached are not proposed. stretch: most levels of a draft per matched token.
    longest: tokens of a text that are looked up in a new generation of the history. lead_in: tokens of the prompt that
    are remembered with the output that followed them.
    """

    name = "suffix"
    shares_memory = True

    def __init__(
        self,
        history: History | None = None,
        *,
        path: Path | None = None,
        floor: float = 0.05,
        stretch: float = 2.0,
        longest: int = 64,
        lead_in: int = 16,
    ) -> None:
        self.history = history if history is not None else History()
        self.floor, self.stretch, self.longest, self.lead_in = floor, stretch, longest, lead_in
        self._path = path
        self._guesses: WeakKeyDictionary[Space, Guesses] = WeakKeyDictionary()

    def guesses_of(self, space: Space) -> Guesses:
        """How guesses from the texts of one memory have done."""
        return self._guesses.setdefault(space, Guesses())

    def open(self, transcript: Transcript) -> SuffixSession:
        return SuffixSession(self, transcript)

    def draft(self, session: SuffixSession, path: Sequence[int], nodes: int) -> Draft:
        return session.draft(path, nodes)

    def close(self) -> None:
        """Write the history where it is to be kept; a disk that is full or read-only is a warning."""
        if self._path is not None:
            keep(self._path, self.history.save)
