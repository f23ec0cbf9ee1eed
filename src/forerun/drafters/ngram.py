"""Prompt lookup: the longest suffix of the text seen earlier in it, and what followed it there.

Saxena, "Prompt Lookup Decoding" (2023); `prompt_lookup_min` and `prompt_lookup_max` in vLLM. Of the n-grams from the
longest to the shortest that end the text, the first seen earlier is taken, and of its occurrences the most recent.
A proposal that reaches the end of the text is cut there, unless the text has been through that whole period already:
then the period is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence

from forerun.core.draft import EMPTY, Draft
from forerun.core.step import StepResult
from forerun.core.transcript import Transcript
from forerun.drafters.base import Session, SessionDrafter
from forerun.errors import UsageError


class NgramIndex:
    """Where each n-gram of a growing text was last followed by something. Costs one dictionary entry per n and token."""

    def __init__(self, shortest: int, longest: int) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._followed: dict[tuple[int, ...], int] = {}
        self._read = 0

    def catch_up(self, tokens: Sequence[int]) -> None:
        """Read what was added to `tokens`, which may only have grown since the last call."""
        for at in range(max(self._read, 1), len(tokens)):
            # The n-gram before `at` is entered once it has a successor, so a text's own suffix is never found.
            for size in self._sizes:
                if size <= at:
                    self._followed[tuple(tokens[at - size : at])] = at
        self._read = len(tokens)

    def find(self, tokens: Sequence[int]) -> tuple[int, int]:
        """(length, position of the successor) of the longest n-gram that ends `tokens` and was seen; (0, 0) if none."""
        for size in self._sizes:
            if size <= len(tokens):
                where = self._followed.get(tuple(tokens[len(tokens) - size :]))
                if where is not None:
                    return size, where
        return 0, 0

    def follow(self, tokens: Sequence[int], path: Sequence[int], nodes: int) -> list[int]:
        """At most `nodes` tokens that may follow the text `tokens` and then `path`."""
        tail = [*tokens[-self._sizes.start :], *path] if path else tokens[-self._sizes.start :]
        size, where = self.find(tail)
        if size == 0 or nodes <= 0:
            return []
        found = list(tokens[where : where + nodes])
        period = len(tokens) + len(path) - where
        if len(found) < nodes and size >= period:
            cycle = [*tokens[where:], *path]
            found = [cycle[i % period] for i in range(nodes)]
        return found


class NgramSession(Session):
    def __init__(self, transcript: Transcript, shortest: int, longest: int) -> None:
        super().__init__(transcript)
        self.index = NgramIndex(shortest, longest)

    def observe(self, result: StepResult) -> None:  # noqa: ARG002
        self.index.catch_up(self.transcript.tokens)


class NgramDrafter(SessionDrafter[NgramSession]):
    """Prompt lookup with n-grams of `shortest` to `longest` tokens. Raises UsageError unless 1 <= shortest <= longest."""

    name = "ngram"

    def __init__(self, shortest: int = 1, longest: int = 4) -> None:
        if not 1 <= shortest <= longest:
            raise UsageError(
                f"n-grams of {shortest} to {longest} tokens make no sense; give a shortest of at least 1 and a longest "
                "that is not below it."
            )
        self.shortest, self.longest = shortest, longest

    def open(self, transcript: Transcript) -> NgramSession:
        return NgramSession(transcript, self.shortest, self.longest)

    def draft(self, session: NgramSession, path: Sequence[int], nodes: int) -> Draft:
        tokens = session.transcript.tokens
        session.index.catch_up(tokens)
        found = session.index.follow(tokens, path, nodes)
        return Draft.chain(found, source=self.name) if found else EMPTY
