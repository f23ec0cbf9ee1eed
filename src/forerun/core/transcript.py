"""The text of one request so far, and the noise that it is written with: all that drafters and controllers see of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from forerun.core.noise import Domain, Noise, Stream, derive
from forerun.core.request import Request


class Constraint(Protocol):
    """What may follow a text, as a function of its tokens: a grammar, a token budget."""

    def allowed(self, path: Sequence[int]) -> NDArray[np.bool_] | None:
        """`[ids]`, whether each may follow the committed output and then `path`; None where all may."""
        ...

    def commit(self, token: int) -> None:
        """The output goes on with a token."""
        ...

    def restart(self, tokens: Sequence[int]) -> None:
        """The output is these tokens."""
        ...


class Transcript:
    """`tokens` is prompt and output, and only grows; the last one is the root, which the target has not read yet.

    keyed: whether drafted tokens are drawn with the target's own noise (keyed verification), or with noise that is
        independent of everything a verifier draws.
    noise: all the randomness of the request, by default from its seed. constraint: what may follow, where not all may.
    """

    def __init__(
        self, request: Request, *, keyed: bool = True, noise: Noise | None = None, constraint: Constraint | None = None
    ) -> None:
        self.request = request
        self.constraint = constraint
        self.keyed = keyed
        self.tokens: list[int] = list(request.prompt)
        self.noise = noise or Noise(request.seed)
        self.token_stream = self.noise.stream(Domain.TOKEN)
        self._counts: dict[int, int] = {}
        self._seen: set[int] | None = None

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.request.prompt) :]

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def remaining(self) -> int | None:
        """Tokens it may still write; None without a limit of its own."""
        limit = self.request.sampling.max_tokens
        return None if limit is None else limit - self.generated

    def add(self, token: int) -> None:
        """Commit one token."""
        self.tokens.append(token)
        self._counts[token] = self._counts.get(token, 0) + 1
        if self._seen is not None:
            self._seen.add(token)
        if self.constraint is not None:
            self.constraint.commit(token)

    def drafting_stream(self, path: Sequence[int], drafter: int) -> Stream:
        """The noise with which a drafter draws the token after the text and `path`.

        Under keyed verification it is the target's own. Otherwise it is fresh in each step, below each path and for each
        drafter: the rules that use q may look at a branch, or a draft may have been cut, because of what was drawn in
        another branch or by another drafter.
        """
        if self.keyed:
            return self.token_stream
        return self.noise.stream(Domain.DRAFT, derive(drafter, len(self.tokens), *path))

    def prefix(self, path: Sequence[int] = ()) -> TranscriptPrefix:
        """The text before the next token, with the tokens of a path through a draft added to it."""
        return TranscriptPrefix(self, tuple(path))

    def recount(self, length: int) -> None:
        """Cut the text to `length` tokens and count its tokens anew: what an interrupted `add` may have left half done."""
        del self.tokens[length:]
        self._seen, self._counts = None, {}
        for token in self.output:
            self._counts[token] = self._counts.get(token, 0) + 1
        if self.constraint is not None:
            self.constraint.restart(self.output)

    def _distinct(self) -> set[int]:
        if self._seen is None:
            self._seen = set(self.tokens)
        return self._seen


@dataclass(frozen=True)
class TranscriptPrefix:
    """A transcript's tokens followed by some drafted ones (see choosing.Prefix)."""

    transcript: Transcript
    path: tuple[int, ...]

    @property
    def length(self) -> int:
        return len(self.transcript.tokens) + len(self.path)

    def seen(self) -> NDArray[np.int64]:
        ids = self.transcript._distinct()
        if not ids.issuperset(self.path):
            ids = ids.union(self.path)
        return np.fromiter(ids, dtype=np.int64, count=len(ids))

    def output_counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        counts = dict(self.transcript._counts)
        for token in self.path:
            counts[token] = counts.get(token, 0) + 1
        return (
            np.fromiter(counts.keys(), dtype=np.int64, count=len(counts)),
            np.fromiter(counts.values(), dtype=np.int64, count=len(counts)),
        )

    def allowed(self) -> NDArray[np.bool_] | None:
        constraint = self.transcript.constraint
        return None if constraint is None else constraint.allowed(self.path)
