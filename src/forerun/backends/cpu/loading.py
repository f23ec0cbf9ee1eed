"""From an opened model file to the core: the description in numbers, matrices repacked or mapped from the cache."""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forerun.backends.cores import usable_cores
from forerun.backends.cpu import _core
from forerun.backends.cpu.options import CpuOptions, free_memory
from forerun.backends.cpu.packed_file import PackedFile, PackedFileError, Writer, file_for
from forerun.backends.reference.rope import attention_factor, frequencies
from forerun.errors import ModelFileError, UnsupportedModelError, UsageError
from forerun.weights.architecture import ARCHITECTURES
from forerun.weights.derive import Derived
from forerun.weights.layout import optional, required
from forerun.weights.spec import Spec
from forerun.weights.tensors import Bytes, Tensor

# ggml's numbers of tensor types.
KINDS = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12,
    "Q5_K": 13, "Q6_K": 14, "IQ4_NL": 20, "IQ4_XS": 23, "BF16": 30,
}  # fmt: skip
DENSE = ("F32", "F16", "BF16")
QUANTIZED = {"w8": "Q8_0", "w4": "Q4_1"}
GROUP = 32
MOST_HEAD_DIM = 1024

# Rows that are turned to fp32 at once where weights are quantized at loading.
_ROWS_AT_ONCE = 4096


def load(
    spec: Spec, tensors: Mapping[str, Tensor], options: CpuOptions, source: Path | None, variant: str = ""
) -> _core.Model:
    """A model ready for passes. Raises UnsupportedModelError, ModelFileError or UsageError."""
    if spec.architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{spec.name}: architecture {spec.architecture!r} is not run by the cpu backend "
            f"({', '.join(ARCHITECTURES)} are): choose another backend or another model"
        )
    # Numbers from a hostile file must not make lists here before the core can refuse them.
    if not 1 <= spec.layers <= len(tensors) or not 1 <= spec.head_dim <= MOST_HEAD_DIM:
        raise ModelFileError(
            f"{spec.name}: {spec.layers} layers with heads of {spec.head_dim} in {len(tensors)} tensors cannot be: "
            "the file is damaged, get it again"
        )
    free = free_memory()
    limit = options.kv_memory or (free * 4 // 5 if free else (1 << 62))
    try:
        model = _core.Model(
            shape_of(spec, options.context),
            options.threads or usable_cores(),
            options.kv_dtype == "fp16",
            limit,
            options.isa or "",
        )
    except ValueError as error:
        raise _explained(error, spec) from error
    try:
        for name, _ in _vectors(spec, tensors):
            model.set_vector(name, np.ascontiguousarray(tensors[name].dequantize(), np.float32).reshape(-1))
        for name, matrix in _packed(spec, tensors, options, source, variant):
            model.set_matrix(name, matrix)
        model.finish()
    except ValueError as error:
        raise ModelFileError(f"{spec.name}: {error}: the file is damaged, get it again") from error
    return model


def shape_of(spec: Spec, context: int | None = None) -> _core.Shape:
    """The description in the core's terms; what rotary scalings come to is computed here, once for all backends."""
    shape = _core.Shape()
    windows = [spec.window(i) for i in range(spec.layers)]
    shape.vocab, shape.width, shape.layers, shape.ffn = spec.vocab_size, spec.width, spec.layers, spec.ffn
    shape.heads, shape.kv_heads, shape.head_dim = spec.heads, spec.kv_heads, spec.head_dim
    shape.context = min(spec.context, context or spec.context)
    shape.norm_eps, shape.query_scale, shape.embed_scale = spec.norm_eps, spec.query_scale, spec.embed_scale
    shape.qk_norm, shape.post_norms, shape.tied = spec.qk_norm, spec.post_norms, spec.tied
    shape.gelu = spec.activation == "gelu_tanh"
    if spec.head_rows:
        shape.head_rows = spec.head_rows
    shape.windows = windows
    local = spec.rope_base_local
    shape.local = [int(local is not None and window > 0) for window in windows]
    shape.frequencies = _rounded(frequencies(spec.rope_base, spec.head_dim, spec.rope_scaling))
    shape.local_frequencies = [] if local is None else _rounded(frequencies(local, spec.head_dim))
    shape.attention_factor = attention_factor(spec.rope_scaling)
    return shape


def _rounded(values: NDArray[np.float64]) -> list[float]:
    # Published models hold their frequencies in fp32; far out the rounding shows.
    return [float(value) for value in values.astype(np.float32)]


def _explained(error: ValueError, spec: Spec) -> Exception:
    if "description" in str(error):
        return ModelFileError(f"{spec.name}: {error}: the file is damaged, get it again")
    return UsageError(str(error))


@dataclass(frozen=True, eq=False)
class Source:
    """A matrix to pack: where it comes from, and the type it is packed as."""

    tensor: Tensor
    kind: str

    @property
    def rows(self) -> int:
        return self.tensor.shape[0]

    @property
    def columns(self) -> int:
        return self.tensor.shape[1]

    @property
    def packed_bytes(self) -> int:
        return _core.packed_bytes(KINDS[self.kind], self.rows, self.columns)

    def data(self) -> Bytes:
        """The rows as GGUF stores them in `kind`, flat."""
        if self.kind == self.tensor.kind:
            return np.ascontiguousarray(self.tensor.data).reshape(-1)
        return _quantized(self.tensor, self.kind)

    def pack_into(self, destination: Bytes) -> None:
        _core.pack_into(KINDS[self.kind], self.rows, self.columns, self.data(), destination)
        _forget_pages(self.tensor.stored)


def _vectors(spec: Spec, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, shape in (*required(spec), *optional(spec)):
        if len(shape) == 1 and name in tensors:
            yield name, shape


def _sources(spec: Spec, tensors: Mapping[str, Tensor], options: CpuOptions) -> dict[str, Source]:
    sources: dict[str, Source] = {}
    for name, shape in required(spec):
        if len(shape) == 2 and name in tensors:
            tensor = tensors[name]
            if tensor.kind not in KINDS:
                raise UnsupportedModelError(
                    f"{spec.name}: tensor {name} is stored as {tensor.kind}, which the cpu backend does not run: "
                    "use a file in Q4_K_M or Q8_0"
                )
            if tensor.shape != shape:
                raise ModelFileError(
                    f"{spec.name}: tensor {name} has shape {list(tensor.shape)}, the model's description asks for "
                    f"{list(shape)}: the file is damaged, get it again"
                )
            quantize = options.quantize if tensor.kind in DENSE and shape[1] % GROUP == 0 else None
            sources[name] = Source(tensor, QUANTIZED[quantize] if quantize else tensor.kind)
    return sources


def _packed(
    spec: Spec, tensors: Mapping[str, Tensor], options: CpuOptions, source: Path | None, variant: str
) -> Iterator[tuple[str, _core.PackedMatrix]]:
    sources = _sources(spec, tensors, options)
    if source is not None and options.cache:
        try:
            for name, blob in _cached(sources, options, source, variant).items():
                yield name, _core.PackedMatrix.view(blob)
            return
        except (OSError, PackedFileError) as error:
            warnings.warn(
                f"no cache of repacked weights ({error}): this start and the next are slower", RuntimeWarning, 2
            )
    for name, item in sources.items():
        yield name, _core.PackedMatrix.pack(KINDS[item.kind], item.rows, item.columns, item.data())
        _forget_pages(item.tensor.stored)


def _cached(sources: Mapping[str, Source], options: CpuOptions, source: Path, variant: str) -> dict[str, Bytes]:
    """Every matrix from the cache. A variant has a file for what differs, and shares the rest with the whole model's.

    Raises OSError or PackedFileError.
    """
    file = file_for(source, options.quantize, options.home)
    if not variant:
        cached = PackedFile.open(file) or PackedFile.build(file, source, _writers(sources))
        return {name: cached.blob(name) for name in sources}
    same = {name for name, item in sources.items() if not isinstance(item.tensor, Derived)}
    whole = PackedFile.open(file) if same else None
    if whole is None or not same <= whole.index.keys():
        same = set()
    other = {name: item for name, item in sources.items() if name not in same}
    if not other:
        assert whole is not None
        return {name: whole.blob(name) for name in sources}
    file = file_for(source, f"{options.quantize},{variant}", options.home)
    cached_other = PackedFile.open(file)
    if cached_other is None or not other.keys() <= cached_other.index.keys():
        cached_other = PackedFile.build(file, source, _writers(other))
    return {name: (whole if whole is not None and name in same else cached_other).blob(name) for name in sources}


def _writers(sources: Mapping[str, Source]) -> dict[str, tuple[int, Writer]]:
    return {name: (item.packed_bytes, item.pack_into) for name, item in sources.items()}


def _quantized(tensor: Tensor, kind: str) -> Bytes:
    rows, columns = tensor.shape
    stride = _core.row_bytes(KINDS[kind], columns)
    out = np.empty(rows * stride, np.uint8)
    data = tensor.data
    for first in range(0, rows, _ROWS_AT_ONCE):
        last = min(rows, first + _ROWS_AT_ONCE)
        part = Tensor(tensor.name, (last - first, columns), tensor.kind, data[first:last])
        values = np.ascontiguousarray(part.dequantize(), np.float32).reshape(-1)
        _core.quantize(values, last - first, columns, kind == "Q8_0", out[first * stride : last * stride])
    return out


def _forget_pages(data: Bytes) -> None:
    """Let the system take back pages of a mapped file that have been read: packing must not hold the model twice."""
    base: object = data
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if isinstance(base, mmap.mmap) and not data.flags.writeable and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)
