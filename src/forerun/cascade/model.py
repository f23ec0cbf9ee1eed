"""Two models behind one `Model`: its rows are a mixture of a small model's and a large one's, by a cascade's rule.

The plain token cascade, without speculation: the small model reads everything, and under `chow` its own confidence
alone decides, so the large model runs only where max q < 1 - a, over all it has missed. Other rules look at both models
at every token. Cascades nest (small -> middle -> large), and can draft like any other model.

The distribution, for raw rows x of the small model and y of the large one, q = softmax(x) and p = softmax(y):

    chow, diff     the row is y where the rule sides with the large model, x elsewhere
    v1, v2, v3     the row is log pi, pi the mixture of p and q
    opt            as diff, with TV(p, q)

and sampling parameters apply to that row. A row depends on its own path alone, so a pass stays batch-invariant where
both models are, and every exact rule on top is exact with respect to this distribution.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
from numpy.typing import NDArray

from forerun.cascade.mixtures import Mixture
from forerun.core.choosing import softmax
from forerun.core.model import KV, NOTHING, Floats, ForwardInput, ForwardOutput, Model, ModelInfo, Needs, Room
from forerun.errors import BackendError, CompositionError

# Tokens of a text that the large model has missed are read in pieces of this many.
_CHUNK = 256


class CascadeKV:
    """A sequence of each model, and the tokens read; the large model's may be behind."""

    def __init__(self, small: KV, large: KV, tokens: Sequence[int] = ()) -> None:
        self.small, self.large, self.tokens = small, large, list(tokens)

    @property
    def length(self) -> int:
        return self.small.length

    def pages_needed(self, length: int) -> int:
        return self.large.pages_needed(length)

    def truncate(self, length: int) -> None:
        self.small.truncate(length)
        self.large.truncate(min(length, self.large.length))
        del self.tokens[length:]

    def fork(self) -> CascadeKV:
        return CascadeKV(self.small.fork(), self.large.fork(), self.tokens)

    def close(self) -> None:
        self.small.close()
        self.large.close()


class CascadeModel:
    """A small model that asks a large one where the rule says so.

    Raises CompositionError where the small model has no row for some of the large one's tokens.
    """

    def __init__(self, small: Model, large: Model, mixture: Mixture) -> None:
        a, b = small.info, large.info
        if a.vocab_size < b.usable_vocab:
            raise CompositionError(
                f"{a.name} cannot stand in for {b.name}: it has rows for {a.vocab_size} tokens, and {b.usable_vocab} "
                "are needed; choose a model of the same vocabulary."
            )
        self.small, self.large, self.mixture = small, large, mixture
        self.info = ModelInfo(
            name=f"{a.name} -> {b.name}",
            backend=b.backend,
            vocab_size=b.vocab_size,
            usable_vocab=b.usable_vocab,
            context=min(a.context, b.context),
            tree=a.tree and b.tree,
            rollback=a.rollback and b.rollback,
            batch_invariant=a.batch_invariant and b.batch_invariant,
        )

    def room(self) -> Room:
        return self.large.room()

    def open(self) -> CascadeKV:
        return CascadeKV(self.small.open(), self.large.open())

    @contextmanager
    def forward(self, inputs: Sequence[ForwardInput], needs: Needs = NOTHING) -> Iterator[CascadeOutput]:
        """One pass of the small model, and one of the large model for the inputs that have a row it must answer."""
        if needs.hidden:
            raise BackendError(f"{self.info.name} reports no hidden states.")
        kvs = [_own(given.kv) for given in inputs]
        self._check(inputs)
        with ExitStack() as passes:
            first = [_for(given, kv.small) for given, kv in zip(inputs, kvs, strict=True)]
            small = passes.enter_context(self.small.forward(first, needs))
            defers = [
                self._defers(small.logits(i)) if given.logits or needs.every_row else ()
                for i, given in enumerate(inputs)
            ]
            asked = [i for i, rows in enumerate(defers) if any(rows)]
            large: ForwardOutput | None = None
            if asked:
                self._catch_up([kvs[i] for i in asked])
                second = [_for(inputs[i], kvs[i].large) for i in asked]
                large = passes.enter_context(self.large.forward(second, needs))
            yield CascadeOutput(self, inputs, kvs, small, large, asked, defers)

    def _check(self, inputs: Sequence[ForwardInput]) -> None:
        """What the two models might not both refuse."""
        info = self.info
        for given in inputs:
            for token in (*given.input_tokens, *given.draft.tokens):
                if not 0 <= token < info.vocab_size:
                    raise BackendError(f"token id {token} is outside {info.name}'s {info.vocab_size} ids.")
            if given.kv.length + len(given.input_tokens) + max(given.draft.depths, default=0) > info.context:
                raise BackendError(f"{info.name} holds {info.context} tokens; the pass needs more.")

    def _defers(self, rows: Floats) -> tuple[bool, ...]:
        """Per row of the small model, whether the large one must be asked."""
        if self.mixture.asks_target:
            return (True,) * len(rows)
        return tuple(self.mixture.sides_with_target(q, q, q, q) for q in map(self._probs, rows))

    def _probs(self, row: Floats) -> NDArray[np.float64]:
        return softmax(row[: self.info.usable_vocab])

    def _catch_up(self, kvs: Sequence[CascadeKV]) -> None:
        """Let the large model read what the small one has read, all sequences in the same passes."""
        while behind := [kv for kv in kvs if kv.large.length < kv.length]:
            inputs = [
                ForwardInput(kv.large, tuple(kv.tokens[kv.large.length :][:_CHUNK]), logits=False) for kv in behind
            ]
            with self.large.forward(inputs) as output:
                for index in range(len(inputs)):
                    output.commit(index, ())

    def mixed(self, small: Floats, large: Floats) -> Floats:
        """The row of the mixture at the large model's width."""
        usable, rule = self.info.usable_vocab, self.mixture
        q, p = self._probs(small), self._probs(large)
        if rule.defers:
            return large if rule.sides_with_target(p, q, p, q) else self.widened(small)
        row = np.full(self.info.vocab_size, -np.inf, dtype=np.float32)
        with np.errstate(divide="ignore"):
            row[:usable] = np.log(rule.mix(p, q, p, q))
        return row

    def widened(self, row: Floats) -> Floats:
        """A row of the small model at the large one's width."""
        if len(row) == self.info.vocab_size:
            return row
        usable = self.info.usable_vocab
        wide = np.full(self.info.vocab_size, -np.inf, dtype=np.float32)
        wide[:usable] = row[:usable]
        return wide

    def close(self) -> None:
        """Release both models."""
        self.small.close()
        self.large.close()


class CascadeOutput:
    """Rows of one pass over both models."""

    def __init__(
        self,
        model: CascadeModel,
        inputs: Sequence[ForwardInput],
        kvs: Sequence[CascadeKV],
        small: ForwardOutput,
        large: ForwardOutput | None,
        asked: Sequence[int],
        defers: Sequence[tuple[bool, ...]],
    ) -> None:
        self._model, self._inputs, self._kvs = model, inputs, kvs
        self._small, self._large, self._defers = small, large, defers
        self._place = {index: place for place, index in enumerate(asked)}
        self._made: dict[int, Floats] = {}

    def logits(self, index: int) -> Floats:
        if index not in self._made:
            self._made[index] = self._rows(index)
        return self._made[index]

    def _rows(self, index: int) -> Floats:
        small = self._small.logits(index)
        if index not in self._place or self._large is None:
            return np.stack([self._model.widened(row) for row in small]) if len(small) else small
        large = self._large.logits(self._place[index])
        rows = [
            self._model.mixed(x, y) if asked else self._model.widened(x)
            for x, y, asked in zip(small, large, self._defers[index], strict=True)
        ]
        return np.stack(rows)

    def not_deferred(self, index: int, row: int) -> bool:
        """Whether the small model answered a row alone."""
        return not self._defers[index][row]

    def hidden(self, index: int, layer: int) -> Floats:  # noqa: ARG002
        raise BackendError(f"{self._model.info.name} reports no hidden states.")

    def commit(self, index: int, path: Sequence[int]) -> None:
        given, kv = self._inputs[index], self._kvs[index]
        self._small.commit(index, path)
        if index in self._place and self._large is not None:
            self._large.commit(self._place[index], path)
        kv.tokens += [*given.input_tokens, *(given.draft.tokens[node] for node in path)]


def _for(given: ForwardInput, kv: KV) -> ForwardInput:
    return ForwardInput(kv, given.input_tokens, given.draft, given.logits)


def _own(kv: KV) -> CascadeKV:
    if not isinstance(kv, CascadeKV):
        raise BackendError(f"a cascade cannot read the KV of another backend ({type(kv).__name__}).")
    return kv
