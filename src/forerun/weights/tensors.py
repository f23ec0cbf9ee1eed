"""Tensors as a model file holds them, and the whole of an opened model.

Nothing is decoded here until somebody asks: data stays mapped into memory in the file's own encoding, so that a backend
can repack it, or `dequantize` it to fp32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from forerun.errors import UnsupportedModelError
from forerun.weights.spec import Spec

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Tensor:
    """One tensor of a model, in the file's own encoding.

    name: canonical, as in `spec`.
    shape: (rows, columns), or (n,) for vectors.
    kind: the ggml name of its encoding: `F32`, `F16`, `BF16`, `Q4_0`, `Q4_K`, `Q8_0`, ...
    stored: the file's bytes, uint8 `[rows, bytes_per_row]` (one row for vectors), read-only and mapped where it can be.
    interleaved_heads: when not zero, the file keeps the rows of each of so many heads in pairs (0, half, 1, half + 1, ...),
        as llama-type GGUF files do; `data` undoes it.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    stored: Bytes
    interleaved_heads: int = 0

    @property
    def data(self) -> Bytes:
        """The bytes in canonical row order, uint8 `[rows, bytes_per_row]`; a copy only where rows had to be reordered."""
        if not self.interleaved_heads:
            return self.stored
        items = self.shape[0]
        paired = self.stored.reshape(self.interleaved_heads, items // self.interleaved_heads // 2, 2, -1)
        return paired.swapaxes(1, 2).reshape(self.stored.shape)

    @property
    def nbytes(self) -> int:
        """Size in the file."""
        return int(self.stored.nbytes)

    def dequantize(self) -> Floats:
        """The values as fp32, of `shape`. Raises UnsupportedModelError for an encoding without a decoder."""
        data = np.ascontiguousarray(self.data)
        if self.kind == "F32":
            values = data.view(np.float32)
        elif self.kind == "F16":
            values = data.view(np.float16).astype(np.float32)
        elif self.kind == "BF16":
            values = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = _dequantize_blocks(self, data)
        return values.reshape(self.shape)


def _dequantize_blocks(tensor: Tensor, data: Bytes) -> Floats:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    try:
        values: Floats = dequantize(data, GGMLQuantizationType[tensor.kind])
    except (KeyError, NotImplementedError) as error:
        raise UnsupportedModelError(
            f"tensor {tensor.name} is stored as {tensor.kind}, which cannot be decoded: use a file in Q4_K_M or Q8_0"
        ) from error
    return values


@dataclass(frozen=True, eq=False)
class Weights:
    """An opened model: its description, its tensors by canonical name, and what the file says about its tokenizer.

    metadata: the key-values of a GGUF file (arrays are decoded when touched), or the config.json of a folder.
    variant: how they differ from the file, in a few words (weights.derive); empty where they do not.
    """

    path: Path
    format: Literal["gguf", "safetensors"]
    spec: Spec
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, Any] = field(repr=False)
    variant: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of weights in the file."""
        return sum(tensor.nbytes for tensor in self.tensors.values())
