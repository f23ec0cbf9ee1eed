"""Tiny language models in numpy with real KV semantics, for exact tests and for trying things without weights.

A toy's logits are a function of the last `order` tokens, but it never looks at the request: it reads those tokens back
from its KV, gathered along each row's own path, exactly as attention would. A KV that keeps a rejected node, forgets an
accepted one or mixes up siblings therefore gives other logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from forerun.core.draft import ROOT
from forerun.core.model import KV, NOTHING, UNLIMITED, Floats, ForwardInput, ModelInfo, Needs, Room
from forerun.core.noise import derive, splitmix64_array
from forerun.errors import BackendError

# From the last tokens of a text to logits `[vocab]`.
LogitsOf = Callable[[tuple[int, ...]], Floats]


class ToyKV:
    """One slot per token read. Slots past `length` belong to a pass that has not committed them."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self.slots: list[int] = []
        self.length = 0
        pages.sequences.add(self)

    def pages_needed(self, length: int) -> int:
        return self._pages.of(length) - self._pages.of(self.length)

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot cut {self.length} tokens back to {length}")
        self.length = length
        del self.slots[length:]

    def store(self) -> NDArray[np.uint8]:
        return np.asarray(self.slots[: self.length], dtype=np.int32).view(np.uint8)

    def fork(self) -> ToyKV:
        copy = ToyKV(self._pages)
        copy.slots, copy.length = self.slots[: self.length], self.length
        return copy

    def close(self) -> None:
        self.slots.clear()
        self.length = 0
        self._pages.sequences.discard(self)


class Pages:
    """The memory of a toy: so many pages of so many tokens, of which no two sequences share one.

    A sequence that nobody holds any more has given its pages back.
    """

    def __init__(self, total: int, page: int) -> None:
        self.total, self.page = total, page
        self.sequences: WeakSet[ToyKV] = WeakSet()

    def of(self, length: int) -> int:
        return -(-length // self.page)

    @property
    def free(self) -> int:
        return self.total - sum(self.of(len(kv.slots)) for kv in self.sequences)


class ToyModel:
    """A Markov chain of any order behind the `Model` protocol.

    logits_of: from the last `order` tokens (fewer at the start of a text) to logits `[vocab]`.
    pages, page: how many pages of how many tokens its sequences may hold together; None is no limit.
    """

    def __init__(
        self,
        vocab: int,
        order: int,
        logits_of: LogitsOf,
        *,
        context: int = 4096,
        name: str = "toy",
        tree: bool = True,
        pages: int | None = None,
        page: int = 8,
    ) -> None:
        self._order = order
        self.logits_of = logits_of
        self._pages = Pages(UNLIMITED.total if pages is None else pages, page)
        self.info = ModelInfo(name, "toy", vocab, vocab, context, tree=tree, hidden=1, width=order)

    def open(self) -> ToyKV:
        return ToyKV(self._pages)

    def restore(self, stored: NDArray[np.uint8], length: int) -> ToyKV:
        if len(stored) != 4 * length:
            raise BackendError(f"{self.info.name} was given {len(stored)} bytes for {length} tokens.")
        kv = self.open()
        kv.slots, kv.length = stored.view(np.int32).tolist(), length
        if self._pages.free < 0:
            kv.close()
            raise BackendError(f"{self.info.name}'s memory is full; run fewer sequences at a time.")
        return kv

    def room(self) -> Room:
        return Room(self._pages.free, self._pages.total, self._pages.page)

    @contextmanager
    def forward(self, inputs: Sequence[ForwardInput], needs: Needs = NOTHING) -> Iterator[ToyOutput]:
        kvs = [_own(given.kv) for given in inputs]
        self._check(inputs, kvs)
        output = ToyOutput(inputs, kvs, needs)
        try:
            for kv, given in zip(kvs, inputs, strict=True):
                kv.slots += [*given.input_tokens, *given.draft.tokens]
                if self._pages.free < 0:
                    raise BackendError(f"{self.info.name}'s memory is full; run fewer sequences at a time.")
                output.add(*self._rows(kv, given, needs))
            yield output
        finally:
            for kv in kvs:
                del kv.slots[kv.length :]

    def close(self) -> None:
        pass

    def _check(self, inputs: Sequence[ForwardInput], kvs: Sequence[ToyKV]) -> None:
        for given, kv in zip(inputs, kvs, strict=True):
            for token in (*given.input_tokens, *given.draft.tokens):
                if not 0 <= token < self.info.vocab_size:
                    raise BackendError(f"token id {token} is outside {self.info.name}'s {self.info.vocab_size} ids.")
            depth = max(given.draft.depths, default=0)
            if kv.length + len(given.input_tokens) + depth > self.info.context:
                raise BackendError(f"{self.info.name} holds {self.info.context} tokens; the pass needs more.")

    def _rows(self, kv: ToyKV, given: ForwardInput, needs: Needs) -> tuple[Floats, Floats]:
        """Logits of the rows asked for, and hidden states (the tokens that each row sees) of all rows."""
        start, root = kv.length, kv.length + len(given.input_tokens)
        read = [tuple(kv.slots[: start + i + 1]) for i in range(len(given.input_tokens))]
        nodes = [
            tuple(kv.slots[:root]) + tuple(kv.slots[root + n] for n in given.draft.path_to(node))
            for node in range(len(given.draft))
        ]
        seen = [path[-self._order :] if self._order else () for path in (*read, *nodes)]
        first = 0 if needs.every_row else len(read) - 1
        wanted = seen[first:] if given.logits or needs.every_row else []
        logits = np.stack([self.logits_of(path) for path in wanted]) if wanted else np.empty((0, self.info.vocab_size))
        hidden = np.full((len(seen), self._order), ROOT, dtype=np.float32)
        for row, path in enumerate(seen):
            hidden[row, self._order - len(path) :] = path
        return logits.astype(np.float32), hidden


class ToyOutput:
    """Rows of one pass over toys."""

    def __init__(self, inputs: Sequence[ForwardInput], kvs: Sequence[ToyKV], needs: Needs) -> None:
        self._inputs, self._kvs, self._needs = inputs, kvs, needs
        self._logits: list[Floats] = []
        self._hidden: list[Floats] = []

    def add(self, logits: Floats, hidden: Floats) -> None:
        self._logits.append(logits)
        self._hidden.append(hidden)

    def logits(self, index: int) -> Floats:
        return self._logits[index]

    def hidden(self, index: int, layer: int) -> Floats:  # noqa: ARG002
        return self._hidden[index]

    def commit(self, index: int, path: Sequence[int]) -> None:
        kv, given = self._kvs[index], self._inputs[index]
        root = kv.length + len(given.input_tokens)
        kept = [kv.slots[root + node] for node in path]
        kv.slots[root:] = kept
        kv.length = root + len(kept)


def random_logits(vocab: int, seed: int, scale: float = 2.0) -> LogitsOf:
    """Logits that look random but depend only on the tokens given, the seed and nothing else."""

    def logits(path: tuple[int, ...]) -> Floats:
        state = derive(seed, *path)
        words = splitmix64_array(state, np.arange(vocab, dtype=np.uint64))
        row: Floats = (words >> np.uint64(40)).astype(np.float32) * np.float32(scale / 2**23) - np.float32(scale)
        return row

    return logits


def text_logits(text: Sequence[int], vocab: int, order: int) -> LogitsOf:
    """A Markov chain counted from a text, backing off to shorter contexts: it babbles in the text's manner."""
    counts: dict[tuple[int, ...], NDArray[np.float32]] = {}
    for end, token in enumerate(text):
        for length in range(min(order, end) + 1):
            key = tuple(text[end - length : end])
            counts.setdefault(key, np.zeros(vocab, dtype=np.float32))[token] += 1

    def logits(path: tuple[int, ...]) -> Floats:
        key = path
        while key and key not in counts:
            key = key[1:]
        row: Floats = np.log(counts.get(key, np.ones(vocab, dtype=np.float32)) + np.float32(1e-4))
        return row

    return logits


def _own(kv: KV) -> ToyKV:
    if not isinstance(kv, ToyKV):
        raise BackendError(f"a toy cannot read the KV of another backend ({type(kv).__name__}).")
    return kv
