"""The reference decoder behind the `Model` protocol: inputs in, rows placed, one pass, and the transaction around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forerun.backends.kv import Placement, SequenceKV, place
from forerun.backends.reference.attention import groups_of
from forerun.backends.reference.decoder import FINAL_NORM, Decoder, Rows
from forerun.backends.reference.layers import Dequantized, Tensors
from forerun.backends.reference.workers import Workers
from forerun.core.draft import ROOT
from forerun.core.model import KV, NOTHING, UNLIMITED, Floats, ForwardInput, ModelInfo, Needs, Room
from forerun.errors import BackendError
from forerun.weights import Weights, open_weights
from forerun.weights.spec import Spec


class ReferenceModel:
    """A decoder of the Llama family in fp32 numpy, batch-invariant bit for bit. One pass at a time per sequence.

    tensors: fp32 by canonical name, as `spec` describes them; read once, here.
    name: what results call it, by default the name in `spec`. usable_vocab: ids from here on are padding.
    context: a smaller context than the model's. threads: cores to use; the result does not depend on it.

    Raises UnsupportedModelError or ModelFileError where the tensors do not fit the description.
    """

    def __init__(
        self,
        spec: Spec,
        tensors: Tensors,
        *,
        name: str | None = None,
        usable_vocab: int | None = None,
        context: int | None = None,
        threads: int | None = None,
    ) -> None:
        self.spec = spec
        self._workers = Workers(threads)
        self._decoder: Decoder | None = Decoder(spec, tensors, self._workers)
        self._info = ModelInfo(
            name=name or spec.name,
            backend="reference",
            vocab_size=spec.vocab_size,
            usable_vocab=min(spec.vocab_size, usable_vocab or spec.vocab_size),
            context=min(spec.context, context or spec.context),
            hidden=spec.layers,
            width=spec.width,
            head_rows=spec.head_rows,
        )

    @classmethod
    def from_weights(
        cls,
        weights: Weights,
        *,
        name: str | None = None,
        usable_vocab: int | None = None,
        context: int | None = None,
        threads: int | None = None,
    ) -> ReferenceModel:
        """Decode the weights of an opened file to fp32 (four bytes a weight). Arguments and errors as above."""
        tensors = Dequantized(weights.tensors)
        return cls(weights.spec, tensors, name=name, usable_vocab=usable_vocab, context=context, threads=threads)

    @classmethod
    def load(cls, path: str | Path, *, context: int | None = None, threads: int | None = None) -> ReferenceModel:
        """From a GGUF file or a Hugging Face folder. Raises what `open_weights` raises."""
        return cls.from_weights(open_weights(path), context=context, threads=threads)

    @property
    def info(self) -> ModelInfo:
        return self._info

    def room(self) -> Room:
        return UNLIMITED

    def open(self) -> SequenceKV:
        return SequenceKV(self, self.spec.layers, self.spec.kv_heads, self.spec.head_dim)

    def borrow(self, kv: KV) -> SequenceKV:
        """See `core.model.Borrower`. Raises BackendError where the two do not store keys and values alike."""
        spec = self.spec
        layers, kv_heads, head_dim = spec.layers, spec.kv_heads, spec.head_dim
        if not isinstance(kv, SequenceKV) or kv.k.shape[0] < layers or kv.k.shape[1::2] != (kv_heads, head_dim):
            raise BackendError(f"{self.info.name} cannot borrow a sequence whose keys and values are of another kind")
        return kv.lend(self, layers)

    @contextmanager
    def forward(self, inputs: Sequence[ForwardInput], needs: Needs = NOTHING) -> Iterator[ReferenceOutput]:
        """One pass over all inputs; see `core.model.Model`. Memory is taken before anything is computed."""
        decoder, kvs = self._check(inputs, needs)
        shares = _shares(inputs, kvs, needs)
        try:
            scored = _run(decoder, shares, needs)
        except BaseException as error:
            for kv in kvs:
                kv.roll_back()
            if isinstance(error, MemoryError):
                raise BackendError(
                    f"{self._info.name}: out of memory in a pass: run fewer sequences at a time"
                ) from error
            raise
        try:
            yield scored
        finally:
            scored.end()

    def close(self) -> None:
        """Release the weights; sequences can only be closed afterwards."""
        self._decoder = None
        self._workers.close()

    def _check(self, inputs: Sequence[ForwardInput], needs: Needs) -> tuple[Decoder, list[SequenceKV]]:
        """Everything that can be wrong with a pass, before it touches anything."""
        info = self._info
        if self._decoder is None:
            raise BackendError(f"{info.name} is closed: load it again")
        for layer in needs.hidden:
            if not FINAL_NORM <= layer < info.hidden:
                raise BackendError(f"{info.name} has no layer {layer}: ask for 0 to {info.hidden - 1}, or -1")
        kvs = [self._own(given.kv) for given in inputs]
        if len({id(kv) for kv in kvs}) < len(kvs):
            raise BackendError("a sequence is given twice in one pass: fork it, or use two passes")
        for given, kv in zip(inputs, kvs, strict=True):
            if not given.input_tokens:
                raise BackendError("an input has no tokens: give at least the last committed one")
            for token in (*given.input_tokens, *given.draft.tokens):
                if not 0 <= token < info.vocab_size:
                    raise BackendError(
                        f"token id {token} is not one of {info.name}'s {info.vocab_size}: use this model's tokenizer"
                    )
            reach = kv.length + len(given.input_tokens) + max(given.draft.depths, default=0)
            if reach > info.context:
                raise BackendError(
                    f"a pass reaches position {reach}, {info.name} holds {info.context} tokens: shorten the text or the draft"
                )
        return self._decoder, kvs

    def _own(self, kv: KV) -> SequenceKV:
        if not isinstance(kv, SequenceKV) or kv.owner is not self:
            raise BackendError(f"{self._info.name} cannot read a sequence that it did not open: use its `open`")
        if kv.closed:
            raise BackendError("a closed sequence cannot be fed: open a new one")
        if kv.in_pass:
            raise BackendError("a sequence is already in a pass: leave that one first")
        return kv


class ReferenceOutput:
    """Rows of one pass; `commit` works until the pass is left."""

    def __init__(self, shares: Sequence[_Share], logits: Floats, hidden: dict[int, Floats]) -> None:
        self._shares = shares
        self._logits = logits
        self._hidden = hidden
        self._committed: set[int] = set()
        self._open = True

    def logits(self, index: int) -> Floats:
        return self._logits[self._shares[index].wanted]

    def hidden(self, index: int, layer: int) -> Floats:
        return self._hidden[layer][self._shares[index].rows]

    def commit(self, index: int, path: Sequence[int]) -> None:
        """Raises BackendError after the pass, a second time, or for a sequence closed meanwhile; ValueError where
        `path` does not lead from the root down."""
        share = self._shares[index]
        if not self._open or index in self._committed or share.kv.closed:
            raise BackendError("nothing to commit: the pass was left, the input committed, or its sequence closed")
        parent = ROOT
        for node in path:
            if not 0 <= node < len(share.given.draft) or share.given.draft.parents[node] != parent:
                raise ValueError(f"path {list(path)} does not lead from the root down: node {node} follows {parent}")
            parent = node
        share.kv.keep(path)
        self._committed.add(index)

    def end(self) -> None:
        """Roll back what was not committed."""
        self._open = False
        for share in self._shares:
            share.kv.roll_back()


@dataclass(frozen=True, eq=False)
class _Share:
    """One input's part of a pass: its rows, and where its logits lie among those that were asked for."""

    given: ForwardInput
    kv: SequenceKV
    placement: Placement
    rows: slice
    wanted: slice


def _shares(inputs: Sequence[ForwardInput], kvs: Sequence[SequenceKV], needs: Needs) -> list[_Share]:
    """All inputs' rows, one input after the other."""
    shares: list[_Share] = []
    row = asked = 0
    for given, kv in zip(inputs, kvs, strict=True):
        placement = place(kv.length, len(given.input_tokens), given.draft)
        rows = len(placement.positions)
        wanted = rows if needs.every_row else int(given.logits) * (1 + len(given.draft))
        shares.append(_Share(given, kv, placement, slice(row, row + rows), slice(asked, asked + wanted)))
        row, asked = row + rows, asked + wanted
    return shares


def _run(decoder: Decoder, shares: Sequence[_Share], needs: Needs) -> ReferenceOutput:
    for share in shares:
        share.kv.begin(len(share.given.input_tokens), len(share.given.draft))
    # The rows whose logits are wanted are the last ones of an input.
    wanted = [np.arange(s.rows.stop - (s.wanted.stop - s.wanted.start), s.rows.stop) for s in shares]
    rows = Rows(
        tokens=_joined([np.array((*s.given.input_tokens, *s.given.draft.tokens), np.int64) for s in shares]),
        positions=_joined([s.placement.positions for s in shares]),
        writes=[(s.kv, s.rows) for s in shares],
        groups=[group for s in shares for group in groups_of(s.kv, s.placement, s.rows.start)],
        logits=_joined(wanted),
        hidden=frozenset(needs.hidden),
    )
    # Broken weights make broken logits, not warnings: the engine reports them.
    with np.errstate(all="ignore"):
        return ReferenceOutput(shares, *decoder.run(rows))


def _joined(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
