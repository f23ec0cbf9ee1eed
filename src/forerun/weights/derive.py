"""Cheaper models made out of an opened one, to draft with: fewer bits, a head of fewer rows, fewer layers.

Nothing is computed until a backend asks for the bytes, and tensors that stay as they were stay the very same objects, so
that a backend can share what it made of them. A drafter may be anything, so none of this can change a promised text.

    requantized: every matrix of more bits becomes groups of 32 in 8 or 4 bits (ggml's Q8_0 and Q4_1)
    with_head: the head scores some ids only (FR-Spec, 2502.14856); all ids can still be read
    first_layers: the first layers, then the norm and the head at once (early exit, LayerSkip 2404.16710)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from forerun.errors import UsageError
from forerun.weights.tensors import Bytes, Floats, Tensor, Weights

GROUP = 32
_KINDS = {"w8": "Q8_0", "w4": "Q4_1"}
# What has more bits than the result would have.
_LARGER = {
    "w8": ("F32", "F16", "BF16"),
    "w4": ("F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0"),
}
# Values turned to fp32 at once, and groups of them rounded at once: these stay in the cache.
_AT_ONCE = 1 << 22
_GROUPS = 4096


@dataclass(frozen=True, eq=False)
class Derived(Tensor):
    """A tensor that is computed when it is asked for. `stored` is what it is computed from.

    make: the bytes in canonical row order. rounds: for a tensor that only has fewer bits, the one it was.
    """

    make: Callable[[], Bytes] = lambda: np.empty((0, 0), np.uint8)
    rounds: Tensor | None = None

    @property
    def data(self) -> Bytes:
        return self.make()


def requantized(weights: Weights, bits: Literal["w8", "w4"]) -> Weights:
    """The weights with at most 8 or 4 bits and what a group of 32 shares; vectors and an embedding that is only read stay.

    `weights` itself where nothing has more bits.
    """
    kind = _KINDS[bits]
    scored = {"embed"} if weights.spec.tied else {"head"}
    tensors: dict[str, Tensor] = {}
    for name, tensor in weights.tensors.items():
        fits = len(tensor.shape) == 2 and tensor.kind in _LARGER[bits] and tensor.shape[1] % GROUP == 0
        used = name in scored or name not in ("embed", "head")
        tensors[name] = _rounded(tensor, kind) if fits and used else tensor
    if all(tensors[name] is tensor for name, tensor in weights.tensors.items()):
        return weights
    return _derived(weights, tensors, bits)


def with_head(weights: Weights, ids: Sequence[int] | NDArray[np.int64]) -> Weights:
    """The weights with a head for `ids` alone: column `k` of the logits is the score of `ids[k]`.

    Raises UsageError where ids are missing, repeated or not the model's.
    """
    spec = weights.spec
    rows = np.asarray(ids, dtype=np.int64)
    if not len(rows) or len(np.unique(rows)) < len(rows) or rows.min() < 0 or rows.max() >= spec.vocab_size:
        raise UsageError(
            f"a head of {len(rows)} rows cannot be cut from {spec.name}: give different ids from 0 to {spec.vocab_size - 1}."
        )
    if spec.head_rows:
        raise UsageError(f"{spec.name} has a head of {spec.head_rows} rows already; cut it from the whole model.")
    whole = weights.tensors["embed" if spec.tied else "head"]
    head = _taken(whole, rows)
    digest = hashlib.sha256(rows.astype("<i8").tobytes()).hexdigest()[:12]
    tensors = dict(weights.tensors) | {"head": head}
    return _derived(weights, tensors, f"head={digest}", tied=False, head_rows=len(rows))


def first_layers(weights: Weights, layers: int) -> Weights:
    """The first `layers` layers with the model's norm and head. Raises UsageError for fewer than one, or all of them."""
    spec = weights.spec
    if not 1 <= layers < spec.layers:
        raise UsageError(
            f"{spec.name} has {spec.layers} layers and cannot exit after {layers}; give 1 to {spec.layers - 1}."
        )
    tensors = {
        name: tensor
        for name, tensor in weights.tensors.items()
        if not name.startswith("layers.") or int(name.split(".")[1]) < layers
    }
    return _derived(weights, tensors, f"exit={layers}", layers=layers, sliding=spec.sliding[:layers])


def head_vectors(weights: Weights, ids: NDArray[np.int64]) -> Floats:
    """The head's rows of some ids as fp32 `[ids, width]`, from the whole head: the score of an id is a product with one."""
    return _taken(weights.tensors["embed" if weights.spec.tied else "head"], ids).dequantize()


def _derived(weights: Weights, tensors: dict[str, Tensor], how: str, **changes: object) -> Weights:
    variant = f"{weights.variant},{how}" if weights.variant else how
    spec = replace(weights.spec, **changes)  # type: ignore[arg-type]
    return replace(weights, spec=spec, tensors=tensors, variant=variant)


def _rounded(tensor: Tensor, kind: str) -> Derived:
    return Derived(tensor.name, tensor.shape, kind, tensor.stored, 0, lambda: _quantize(tensor, kind), tensor)


def _taken(tensor: Tensor, rows: NDArray[np.int64]) -> Derived:
    """Rows of a matrix, in the order of `rows`; what is rounded is rounded after they were taken."""
    if isinstance(tensor, Derived) and tensor.rounds is not None:
        return _rounded(_taken(tensor.rounds, rows), tensor.kind)
    return Derived("head", (len(rows), tensor.shape[1]), tensor.kind, tensor.stored, 0, lambda: tensor.data[rows])


def _quantize(tensor: Tensor, kind: str) -> Bytes:
    data, (rows, columns) = tensor.data, tensor.shape
    step = max(1, _AT_ONCE // columns)
    parts = []
    for at in range(0, rows, step):
        some = data[at : at + step]
        values = Tensor(tensor.name, (len(some), columns), tensor.kind, some).dequantize()
        parts.append(_q4_1(values) if kind == "Q4_1" else _q8_0(values))
    return np.concatenate(parts)


def _q8_0(values: Floats) -> Bytes:
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    rounded: Bytes = quantize(values, GGMLQuantizationType.Q8_0)
    return rounded


def _q4_1(values: Floats) -> Bytes:
    """ggml's Q4_1, scale and minimum of each group of 32 fitted twice to the codes that they gave: a fifth less squared
    error than what they are by the group's range."""
    groups = values.reshape(-1, GROUP)
    packed = np.empty((len(groups), 20), np.uint8)
    for at in range(0, len(groups), _GROUPS):
        x = groups[at : at + _GROUPS]
        low = x.min(1)
        scale = (x.max(1) - low) / np.float32(15)
        for _ in range(2):
            codes = _codes(x, scale, low)
            total, squares = codes.sum(1), np.einsum("ij,ij->i", codes, codes)
            sums, products = x.sum(1), np.einsum("ij,ij->i", codes, x)
            spread = GROUP * squares - total * total
            scale = np.divide(GROUP * products - total * sums, spread, out=scale, where=spread > 0)
            low = (sums - scale * total) / np.float32(GROUP)
        nibbles = _codes(x, scale, low).astype(np.uint8)
        out = packed[at : at + _GROUPS]
        out[:, 0:2] = scale.astype(np.float16).view(np.uint8).reshape(-1, 2)
        out[:, 2:4] = low.astype(np.float16).view(np.uint8).reshape(-1, 2)
        out[:, 4:] = nibbles[:, :16] | (nibbles[:, 16:] << 4)
    return packed.reshape(len(values), -1)


def _codes(x: Floats, scale: Floats, low: Floats) -> Floats:
    """The nearest code of each value, as the scale and minimum will be stored."""
    stored = scale.astype(np.float16).astype(np.float32)
    steps = np.divide(1, stored, out=np.zeros_like(stored), where=stored > 0)
    codes = x - low.astype(np.float16).astype(np.float32)[:, None]
    codes *= steps[:, None]
    rounded: Floats = np.clip(np.rint(codes, out=codes), 0, 15, out=codes)
    return rounded
