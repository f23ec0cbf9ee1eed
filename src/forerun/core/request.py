"""A request: the tokens so far, how to choose the next, and when to stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from forerun.core.noise import Domain, Noise, Stream
from forerun.core.sampling import Sampling, TokenLogprob
from forerun.core.stats import Stats

if TYPE_CHECKING:
    from forerun.core.protocols import KV, DraftSession

FinishReason = Literal["stop", "length", "abort", "error"]


class Watcher(Protocol):
    """Sees each committed token once, in order. Text, stop strings and whatever else ends a request early live here."""

    def push(self, token: int) -> bool:
        """True ends the request with this token (finish reason `stop`)."""
        ...


@dataclass(eq=False)
class Request:
    """One text being written. `tokens` is prompt and output; the last one is the root.

    prompt: token ids, at least one. seed: the resolved one. stop_ids: ids that end the text (`stop`).
    shares_noise: whether drafters draw with the target's own noise (set from the verifier).
    wants_beliefs: whether drafts should carry beliefs (set from the verifier).
    space: name of the drafters' memory of earlier requests that it reads and adds to; spaces never see each other.
    prediction: token ids that the caller expects as the output, or as parts of it; for the drafter of that name.
    """

    prompt: Sequence[int]
    sampling: Sampling
    seed: int = 0
    stop_ids: frozenset[int] = frozenset()
    watcher: Watcher | None = None
    id: str = ""
    shares_noise: bool = True
    wants_beliefs: bool = False
    space: str = ""
    prediction: Sequence[int] = ()

    tokens: list[int] = field(init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    error: Exception | None = field(default=None, init=False)
    logprobs: list[TokenLogprob] = field(default_factory=list, init=False)
    stats: Stats = field(default_factory=Stats, init=False)
    kv: KV | None = field(default=None, init=False)
    session: DraftSession | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)
        self.noise = Noise(self.seed)
        self.token_stream = self.noise.stream(Domain.TOKEN)
        self._counts: dict[int, int] = {}
        self._seen = set(self.tokens)

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.prompt)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def remaining(self) -> int | None:
        """Tokens it may still write; None without a limit of its own."""
        limit = self.sampling.max_tokens
        return None if limit is None else limit - self.generated

    def drafting_stream(self) -> Stream:
        """The noise a drafter draws with now.

        Under a rule that shares noise it is the target's own. Otherwise it is independent of everything a verifier
        draws, and fresh each round (keyed by the round's root), since such rules may look at tokens past the first rejection.
        """
        return self.token_stream if self.shares_noise else self.noise.stream(Domain.DRAFT, len(self.tokens))

    def append(self, token: int, context: int) -> bool:
        """Commit one token; true when the request ended with it. `context` is the most tokens the model can hold."""
        self.tokens.append(token)
        self._counts[token] = self._counts.get(token, 0) + 1
        self._seen.add(token)
        stopped = self.watcher.push(token) if self.watcher is not None else False
        if token in self.stop_ids or stopped:
            self.finish_reason = "stop"
        elif self.remaining == 0 or len(self.tokens) >= context:
            self.finish_reason = "length"
        return self.finished

    def prefix(self, path: Sequence[int] = ()) -> RequestPrefix:
        """The text before the next token, with the tokens of a path through a draft added to it."""
        return RequestPrefix(self, tuple(path))


@dataclass(frozen=True)
class RequestPrefix:
    """A request's tokens followed by some drafted ones (see sampling.Prefix)."""

    request: Request
    path: tuple[int, ...]

    @property
    def length(self) -> int:
        return len(self.request.tokens) + len(self.path)

    def seen(self) -> NDArray[np.int64]:
        ids = self.request._seen
        if not ids.issuperset(self.path):
            ids = ids.union(self.path)
        return np.fromiter(ids, dtype=np.int64, count=len(ids))

    def output_counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        counts = dict(self.request._counts)
        for token in self.path:
            counts[token] = counts.get(token, 0) + 1
        return (
            np.fromiter(counts.keys(), dtype=np.int64, count=len(counts)),
            np.fromiter(counts.values(), dtype=np.int64, count=len(counts)),
        )
