"""The arithmetic of one decoder in fp32: the Llama family, from embedding to logits. Knows rows, not drafts.

Llama, Mistral, Qwen2, Qwen3 and Gemma 3 are one architecture with options: biases of q, k, v and o, norms of q and k per
head, norms after attention and MLP, sliding windows, two rotary bases, a factor on embeddings, tied heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from forerun.backends.kv import SequenceKV
from forerun.backends.reference.attention import Group, attend
from forerun.backends.reference.layers import Layer, Loader, Tensors
from forerun.backends.reference.linear import Linear
from forerun.backends.reference.rope import Rope, rotate
from forerun.backends.reference.workers import Workers
from forerun.core.model import Floats
from forerun.errors import UnsupportedModelError
from forerun.weights.architecture import ARCHITECTURES
from forerun.weights.spec import Spec

FINAL_NORM = -1

Rotation = tuple[Floats, Floats]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a pass.

    tokens, positions: `[rows]`. writes: which rows' keys and values go to which sequence. groups: the rows that attend
    together. logits: the rows whose logits are wanted. hidden: layers whose output is wanted, or FINAL_NORM.
    """

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    writes: Sequence[tuple[SequenceKV, slice]]
    groups: Sequence[Group]
    logits: NDArray[np.int64]
    hidden: frozenset[int]


class Decoder:
    """All layers of a model. Raises UnsupportedModelError or ModelFileError where `tensors` do not fit `spec`."""

    def __init__(self, spec: Spec, tensors: Tensors, workers: Workers) -> None:
        if spec.architecture not in ARCHITECTURES:
            raise UnsupportedModelError(
                f"{spec.name}: architecture {spec.architecture!r} is not run by the reference backend "
                f"({', '.join(ARCHITECTURES)} are): choose another model"
            )
        self.spec = spec
        self._workers = workers
        load = Loader(spec, tensors, workers)
        self._embed = load.tensor("embed")
        self._layers = load.layers()
        self._norm = load.tensor("norm")
        self._head = Linear(self._embed if spec.tied else load.tensor("head"), workers=workers)
        self._rope = Rope(spec.rope_base, spec.head_dim, spec.rope_scaling)
        local = spec.rope_base_local
        self._sliding_rope = self._rope if local is None else Rope(local, spec.head_dim)

    def run(self, rows: Rows) -> tuple[Floats, dict[int, Floats]]:
        """Write the rows' keys and values; return logits `[wanted, vocab]` and hidden states `[rows, width]` by layer."""
        spec = self.spec
        hidden: dict[int, Floats] = {}
        windows = [spec.window(i) for i in range(spec.layers)]
        masks = {window: [group.hidden(window) for group in rows.groups] for window in set(windows)}
        ropes = {sliding: self._rope_of(sliding).at(rows.positions) for sliding in {w > 0 for w in windows}}
        x = self._embed[rows.tokens] * np.float32(spec.embed_scale)
        for i, (layer, window) in enumerate(zip(self._layers, windows, strict=True)):
            normed = self._norm_of(x, layer.attn_norm)
            mixed = self._attention(i, normed, rows, masks[window], ropes[window > 0])
            x = x + (mixed if layer.post_attn_norm is None else self._norm_of(mixed, layer.post_attn_norm))
            mixed = self._mlp(layer, self._norm_of(x, layer.ffn_norm))
            x = x + (mixed if layer.post_ffn_norm is None else self._norm_of(mixed, layer.post_ffn_norm))
            if i in rows.hidden:
                hidden[i] = x
        if FINAL_NORM in rows.hidden:
            hidden[FINAL_NORM] = self._norm_of(x, self._norm)
        return self._head(self._norm_of(x[rows.logits], self._norm)), hidden

    def _rope_of(self, sliding: bool) -> Rope:
        return self._sliding_rope if sliding else self._rope

    def _norm_of(self, x: Floats, weight: Floats) -> Floats:
        """RMSNorm (1910.07467) over the last axis, which is equally long for every row."""
        square = np.mean(x * x, axis=-1, keepdims=True)
        normed: Floats = x / np.sqrt(square + np.float32(self.spec.norm_eps)) * weight
        return normed

    def _attention(self, i: int, x: Floats, rows: Rows, masks: Sequence[Mask], rotation: Rotation) -> Floats:
        """Grouped-query attention (2305.13245) of layer `i`, after writing the rows' keys and values."""
        spec, layer = self.spec, self._layers[i]
        heads, kv_heads = spec.heads, spec.kv_heads
        qkv = layer.qkv(x).reshape(len(x), heads + 2 * kv_heads, spec.head_dim)
        q, k, v = np.split(qkv, (heads, heads + kv_heads), axis=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm_of(q, layer.q_norm), self._norm_of(k, layer.k_norm)
        q = rotate(q, *rotation) * np.float32(spec.query_scale)
        k = rotate(k, *rotation)
        for kv, mine in rows.writes:
            kv.write(i, k[mine], v[mine])
        q = q.reshape(len(x), kv_heads, heads // kv_heads, spec.head_dim)
        out = np.empty_like(q)

        def share(group: Group, mask: Mask) -> None:
            out[group.rows] = attend(group, i, q[group.rows], mask, spec.window(i))

        self._workers.run([partial(share, group, mask) for group, mask in zip(rows.groups, masks, strict=True)])
        return layer.o(out.reshape(len(x), heads * spec.head_dim))

    def _mlp(self, layer: Layer, x: Floats) -> Floats:
        """Gated MLP (2002.05202)."""
        gate, up = np.split(layer.gate_up(x), 2, axis=1)
        activate = silu if self.spec.activation == "silu" else gelu_tanh
        return layer.down(activate(gate) * up)


def silu(x: Floats) -> Floats:
    activated: Floats = x / (1 + np.exp(-x))
    return activated


def gelu_tanh(x: Floats) -> Floats:
    """The tanh form of GELU (1606.08415)."""
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * (x * x * x))
    activated: Floats = np.float32(0.5) * x * (1 + np.tanh(inner))
    return activated
