"""The tiny decoders of `tiny` in the compiled core, as fp32 or in any encoding that gguf can write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.backends.cpu import CpuModel
from forerun.backends.cpu.model import CpuKV
from forerun.backends.cpu.options import CpuOptions
from forerun.weights.spec import Spec
from forerun.weights.tensors import Tensor
from tests.unit.backends.tiny import Floats, random_tensors, spec_of

# What quantized matrices need: columns in multiples of 32.
WIDE = {"width": 64, "ffn": 96, "heads": 4, "kv_heads": 2, "head_dim": 16, "query_scale": 0.25}


def stored(name: str, values: Floats, kind: str = "F32") -> Tensor:
    """A tensor as a file would hold it; vectors stay fp32."""
    if kind == "F32" or values.ndim == 1:
        flat = np.ascontiguousarray(values, np.float32)
        return Tensor(
            name, values.shape, "F32", flat.reshape(1 if values.ndim == 1 else len(values), -1).view(np.uint8)
        )
    if kind == "F16":
        return Tensor(name, values.shape, kind, np.ascontiguousarray(values, np.float16).view(np.uint8))
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    return Tensor(name, values.shape, kind, quantize(values, GGMLQuantizationType[kind]).view(np.uint8))


def encoded(spec: Spec, kind: str, seed: int = 0) -> dict[str, Tensor]:
    """Random weights in one encoding; `mixed` takes another one for each matrix."""
    kinds = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "F32", "BF16")
    return {
        name: stored(name, values, kinds[i % len(kinds)] if kind == "mixed" else kind)
        for i, (name, values) in enumerate(random_tensors(spec, seed).items())
    }


def tiny_cpu(
    architecture: str, kind: str = "F32", *, seed: int = 0, options: CpuOptions | None = None, **changes: Any
) -> CpuModel:
    spec = spec_of(architecture, **({} if kind == "F32" else WIDE) | changes)
    return CpuModel(spec, encoded(spec, kind, seed), options=options or CpuOptions(threads=1))


def dequantized(tensors: Mapping[str, Tensor]) -> dict[str, Floats]:
    return {name: tensor.dequantize() for name, tensor in tensors.items()}


def cpu_contents(kv: CpuKV) -> list[NDArray[Any]]:
    """All that a sequence holds."""
    return [half for layer in range(kv.owner.spec.layers) for half in kv.snapshot(layer)]
