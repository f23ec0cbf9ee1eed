"""The compiled core behind the `Model` protocol: inputs in, one call, and the transaction around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident, main_thread
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forerun.backends.cpu.options import CpuOptions
from forerun.core.model import KV, NOTHING, Floats, ForwardInput, ModelInfo, Needs, Room
from forerun.errors import BackendError
from forerun.weights import Weights, open_weights
from forerun.weights.spec import Spec
from forerun.weights.tensors import Tensor

if TYPE_CHECKING:
    from forerun.backends.cpu import _core

# Tokens of a page of keys and values, as the core lays them out (native/pass_kernels.h).
PAGE = 64


def missing_core() -> str | None:
    """Why the compiled core cannot be used here, in one line with what to do, or None where it can."""
    try:
        from forerun.backends.cpu import _core  # noqa: F401
    except ImportError as error:
        why = "it was not built" if error.name == "forerun.backends.cpu" else str(error)
        return (
            f"the compiled core is missing ({why}): install a C++ compiler and reinstall forerun; "
            "until then the reference backend runs, some 30 times slower"
        )
    return None


class CpuModel:
    """A decoder of the Llama family in the compiled core, batch-invariant bit for bit. Passes take turns.

    spec, tensors: as `open_weights` gives them. name: what results call it, by default the name in `spec`.
    usable_vocab: ids from here on are padding. source: the file or folder that the tensors come from, to cache them.
    variant: how they differ from it (weights.derive).

    Raises UnsupportedModelError or ModelFileError for what the core does not run, BackendError where it is missing.
    """

    def __init__(
        self,
        spec: Spec,
        tensors: Mapping[str, Tensor],
        *,
        name: str | None = None,
        usable_vocab: int | None = None,
        options: CpuOptions | None = None,
        source: Path | None = None,
        variant: str = "",
    ) -> None:
        missing = missing_core()
        if missing is not None:
            raise BackendError(missing)
        from forerun.backends.cpu.loading import load

        self.spec = spec
        self.options = options = options or CpuOptions()
        self._core: _core.Model | None = load(spec, tensors, options, source, variant)
        self._info = ModelInfo(
            name=name or spec.name,
            backend="cpu",
            vocab_size=spec.vocab_size,
            usable_vocab=min(spec.vocab_size, usable_vocab or spec.vocab_size),
            context=min(spec.context, options.context or spec.context),
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
        options: CpuOptions | None = None,
    ) -> CpuModel:
        """Load an opened file. Arguments and errors as above."""
        return cls(
            weights.spec,
            weights.tensors,
            name=name,
            usable_vocab=usable_vocab,
            options=options,
            source=weights.path,
            variant=weights.variant,
        )

    @classmethod
    def load(cls, path: str | Path, options: CpuOptions | None = None) -> CpuModel:
        """From a GGUF file or a Hugging Face folder. Raises what `open_weights` raises."""
        return cls.from_weights(open_weights(path), options=options)

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def isa(self) -> str:
        """The instruction set that it runs on."""
        return self._running().isa

    @property
    def threads(self) -> int:
        """Threads that share a pass; setting it waits for the pass that is running."""
        return self._running().threads

    @threads.setter
    def threads(self, threads: int) -> None:
        self._running().set_threads(CpuOptions(threads=threads).threads or 1)

    @property
    def settings(self) -> tuple[object, ...]:
        """What the cost of a pass depends on besides the file."""
        return (self.threads, self.isa, self.options.kv_dtype, self.options.quantize)

    @property
    def kv_bytes(self) -> int:
        """Bytes that keys and values take now, pages kept for reuse included."""
        return self._running().kv_bytes

    def room(self) -> Room:
        free, total = self._running().kv_pages
        return Room(free, total, PAGE)

    def open(self) -> CpuKV:
        return CpuKV(self, self._running().open())

    def restore(self, stored: NDArray[np.uint8], length: int) -> CpuKV:
        """See `core.model.Storage`. Raises BackendError where the bytes are not of this model, or there is no room."""
        try:
            return CpuKV(self, self._running().restore(np.ascontiguousarray(stored), length))
        except (RuntimeError, ValueError) as error:
            raise BackendError(f"{self._info.name}: {error}") from error

    def borrow(self, kv: KV) -> CpuKV:
        """See `core.model.Borrower`. Raises BackendError where the two do not store keys and values alike."""
        if not isinstance(kv, CpuKV):
            raise BackendError(f"{self._info.name} cannot borrow a sequence of another backend")
        try:
            return CpuKV(self, self._running().borrow(kv.sequence))
        except RuntimeError as error:
            raise BackendError(f"{self._info.name}: {error}") from error

    @contextmanager
    def forward(self, inputs: Sequence[ForwardInput], needs: Needs = NOTHING) -> Iterator[CpuOutput]:
        """One pass over all inputs; see `core.model.Model`. Ctrl-C stops it between layers."""
        core = self._running()
        native = [
            (self._own(given.kv), given.input_tokens, given.draft.tokens, given.draft.parents, given.logits)
            for given in inputs
        ]
        try:
            done = core.forward(native, needs.hidden, needs.every_row, get_ident() == main_thread().ident)
        except (RuntimeError, ValueError, MemoryError, TypeError) as error:
            raise BackendError(
                f"{self._info.name}: {error or 'out of memory in a pass: given less at once'}"
            ) from error
        try:
            yield CpuOutput(done, inputs)
        finally:
            done.close()

    def close(self) -> None:
        """Let go of the weights; their memory is free once no sequence is left open."""
        self._core = None

    def _running(self) -> _core.Model:
        if self._core is None:
            raise BackendError(f"{self._info.name} is closed: load it again")
        return self._core

    def _own(self, kv: KV) -> _core.Sequence:
        if not isinstance(kv, CpuKV) or kv.owner is not self:
            raise BackendError(f"{self._info.name} cannot read a sequence that it did not open: use its `open`")
        return kv.sequence


class CpuKV:
    """One sequence in the core. Pages that forks share are copied when one of them writes.

    owner: the model that opened it, the only one that may read it.
    """

    __slots__ = ("owner", "sequence")

    def __init__(self, owner: CpuModel, sequence: _core.Sequence) -> None:
        self.owner = owner
        self.sequence = sequence

    @property
    def length(self) -> int:
        return self.sequence.length

    def pages_needed(self, length: int) -> int:
        return self.sequence.pages_needed(length)

    def truncate(self, length: int) -> None:
        """Forget everything past `length` tokens. Raises ValueError when there are fewer, or in the middle of a pass."""
        self.sequence.truncate(length)

    def fork(self) -> CpuKV:
        """A sequence with the same tokens, in no time. Raises BackendError once closed."""
        try:
            return CpuKV(self.owner, self.sequence.fork())
        except RuntimeError as error:
            raise BackendError(str(error)) from error

    def store(self) -> NDArray[np.uint8]:
        """The committed keys and values as bytes. Raises BackendError once closed."""
        try:
            return self.sequence.store()
        except RuntimeError as error:
            raise BackendError(str(error)) from error

    def snapshot(self, layer: int) -> tuple[Floats, Floats]:
        """Copies of the committed keys and values of a layer, `[kv_heads, length, head_dim]` each."""
        dtype = np.float16 if self.owner.options.kv_dtype == "fp16" else np.float32
        keys, values = (half.view(dtype)[..., : self.owner.spec.head_dim] for half in self.sequence.snapshot(layer))
        return keys.astype(np.float32), values.astype(np.float32)

    def close(self) -> None:
        self.sequence.close()


class CpuOutput:
    """Rows of one pass; `commit` works until the pass is left."""

    __slots__ = ("_inputs", "_pass")

    def __init__(self, done: _core.Pass, inputs: Sequence[ForwardInput]) -> None:
        self._pass = done
        self._inputs = inputs

    def logits(self, index: int) -> Floats:
        """Raises BackendError after the pass; a view taken before stays valid."""
        try:
            return self._pass.logits(index)
        except RuntimeError as error:
            raise BackendError(str(error)) from error

    def hidden(self, index: int, layer: int) -> Floats:
        """Raises BackendError after the pass and for a layer that was not asked for."""
        try:
            return self._pass.hidden(index, layer)
        except RuntimeError as error:
            raise BackendError(str(error)) from error

    def commit(self, index: int, path: Sequence[int]) -> None:
        """Raises BackendError after the pass, a second time, or for a sequence closed meanwhile; ValueError where
        `path` does not lead from the root down."""
        try:
            self._pass.commit(index, path)
        except RuntimeError as error:
            raise BackendError(str(error)) from error
