"""Tiny language models in numpy with real KV semantics, for exact tests and for trying things without weights.

A toy's logits are a function of the last `order` tokens, but it never looks at the request: it reads those tokens back
from its KV, gathered along each row's own path, exactly as attention would. A KV that keeps a rejected node, forgets an
accepted one or mixes up siblings therefore gives other logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from forerun.core.draft import ROOT
from forerun.core.noise import derive, splitmix64_array
from forerun.core.protocols import KV, NOTHING, Floats, ForwardInput, ModelInfo, Needs
from forerun.errors import BackendError

Law = Callable[[tuple[int, ...]], Floats]


class ToyKV:
    """One slot per token read. Slots past `length` belong to a pass that has not committed them."""

    def __init__(self) -> None:
        self.slots: list[int] = []
        self.length = 0

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot cut {self.length} tokens back to {length}")
        self.length = length
        del self.slots[length:]

    def fork(self) -> ToyKV:
        copy = ToyKV()
        copy.slots, copy.length = self.slots[: self.length], self.length
        return copy

    def close(self) -> None:
        self.slots.clear()
        self.length = 0


class ToyModel:
    """A Markov chain of any order behind the `Model` protocol.

    law: from the last `order` tokens (fewer at the start of a text) to logits `[vocab]`.
    """

    def __init__(
        self, vocab: int, order: int, law: Law, *, context: int = 4096, name: str = "toy", tree: bool = True
    ) -> None:
        self._order = order
        self._law = law
        self.info = ModelInfo(name, "toy", vocab, vocab, context, tree=tree, hidden=1, width=order)

    def open(self) -> ToyKV:
        return ToyKV()

    @contextmanager
    def forward(self, inputs: Sequence[ForwardInput], needs: Needs = NOTHING) -> Iterator[ToyOutput]:
        kvs = [_own(feed.kv) for feed in inputs]
        self._check(inputs, kvs)
        scored = ToyOutput(inputs, kvs, needs)
        try:
            for kv, feed in zip(kvs, inputs, strict=True):
                kv.slots += [*feed.input_tokens, *feed.draft.tokens]
                scored.add(*self._rows(kv, feed, needs))
            yield scored
        finally:
            for kv in kvs:
                del kv.slots[kv.length :]

    def close(self) -> None:
        pass

    def _check(self, inputs: Sequence[ForwardInput], kvs: Sequence[ToyKV]) -> None:
        for feed, kv in zip(inputs, kvs, strict=True):
            for token in (*feed.input_tokens, *feed.draft.tokens):
                if not 0 <= token < self.info.vocab_size:
                    raise BackendError(f"token id {token} is outside {self.info.name}'s {self.info.vocab_size} ids.")
            depth = max(feed.draft.depths, default=0)
            if kv.length + len(feed.input_tokens) + depth > self.info.context:
                raise BackendError(f"{self.info.name} holds {self.info.context} tokens; the pass needs more.")

    def _rows(self, kv: ToyKV, feed: ForwardInput, needs: Needs) -> tuple[Floats, Floats]:
        """Logits of the rows asked for, and hidden states (the tokens that each row sees) of all rows."""
        start, root = kv.length, kv.length + len(feed.input_tokens)
        input_tokens = [tuple(kv.slots[: start + i + 1]) for i in range(len(feed.input_tokens))]
        nodes = [
            tuple(kv.slots[:root]) + tuple(kv.slots[root + n] for n in feed.draft.path_to(node))
            for node in range(len(feed.draft))
        ]
        seen = [path[-self._order :] if self._order else () for path in (*input_tokens, *nodes)]
        first = 0 if needs.every_row else len(input_tokens) - 1
        wanted = seen[first:] if feed.logits or needs.every_row else []
        logits = np.stack([self._law(path) for path in wanted]) if wanted else np.empty((0, self.info.vocab_size))
        hidden = np.full((len(seen), self._order), ROOT, dtype=np.float32)
        for row, path in enumerate(seen):
            hidden[row, self._order - len(path) :] = path
        return logits.astype(np.float32), hidden


class ToyOutput:
    """Rows of one pass over toys."""

    def __init__(self, inputs: Sequence[ForwardInput], kvs: Sequence[ToyKV], needs: Needs) -> None:
        self._feeds, self._kvs, self._needs = inputs, kvs, needs
        self._logits: list[Floats] = []
        self._hidden: list[Floats] = []

    def add(self, logits: Floats, hidden: Floats) -> None:
        self._logits.append(logits)
        self._hidden.append(hidden)

    def logits(self, index: int) -> Floats:
        return self._logits[index]

    def hidden(self, index: int, layer: int) -> Floats:
        return self._hidden[index]

    def commit(self, index: int, path: Sequence[int]) -> None:
        kv, feed = self._kvs[index], self._feeds[index]
        root = kv.length + len(feed.input_tokens)
        kept = [kv.slots[root + node] for node in path]
        kv.slots[root:] = kept
        kv.length = root + len(kept)


def random_logits(vocab: int, seed: int, scale: float = 2.0) -> Law:
    """Logits that look random but depend only on the tokens given, the seed and nothing else."""

    def law(path: tuple[int, ...]) -> Floats:
        state = derive(seed, *path)
        words = splitmix64_array(state, np.arange(vocab, dtype=np.uint64))
        logits: Floats = (words >> np.uint64(40)).astype(np.float32) * np.float32(scale / 2**23) - np.float32(scale)
        return logits

    return law


def text_logits(text: Sequence[int], vocab: int, order: int) -> Law:
    """A Markov chain counted from a text, backing off to shorter contexts: it babbles in the text's manner."""
    counts: dict[tuple[int, ...], NDArray[np.float32]] = {}
    for end, token in enumerate(text):
        for length in range(min(order, end) + 1):
            key = tuple(text[end - length : end])
            counts.setdefault(key, np.zeros(vocab, dtype=np.float32))[token] += 1

    def law(path: tuple[int, ...]) -> Floats:
        key = path
        while key and key not in counts:
            key = key[1:]
        logits: Floats = np.log(counts.get(key, np.ones(vocab, dtype=np.float32)) + np.float32(1e-4))
        return logits

    return law


def _own(kv: KV) -> ToyKV:
    if not isinstance(kv, ToyKV):
        raise BackendError(f"a toy cannot read the KV of another backend ({type(kv).__name__}).")
    return kv
