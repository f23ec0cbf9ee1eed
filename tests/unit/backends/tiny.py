"""Tiny random decoders of every architecture, with odd shapes, and what tests ask of their sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.backends.kv import SequenceKV
from forerun.backends.reference import ReferenceModel
from forerun.core.model import ForwardInput, Model
from forerun.weights.layout import optional, required
from forerun.weights.spec import Spec

Floats = NDArray[np.float32]

_BASE = Spec(
    architecture="llama",
    name="tiny",
    vocab_size=101,
    width=48,
    layers=3,
    heads=6,
    kv_heads=2,
    head_dim=16,
    ffn=72,
    context=400,
    norm_eps=1e-5,
    rope_base=10_000.0,
    query_scale=0.25,
)
SPECS: dict[str, Spec] = {
    "llama": _BASE,
    "mistral": replace(_BASE, architecture="mistral", heads=4, kv_heads=1, sliding=(19,) * 3),
    "qwen2": replace(
        _BASE, architecture="qwen2", width=56, heads=7, kv_heads=7, head_dim=8, query_scale=8**-0.5, tied=True
    ),
    "qwen3": replace(_BASE, architecture="qwen3", qk_norm=True, norm_eps=1e-6),
    "gemma3": replace(
        _BASE,
        architecture="gemma3",
        heads=4,
        head_dim=24,
        query_scale=20**-0.5,
        qk_norm=True,
        post_norms=True,
        rope_base=1_000_000.0,
        rope_base_local=10_000.0,
        sliding=(9, 70, 0),
        activation="gelu_tanh",
        embed_scale=math.sqrt(48),
        tied=True,
    ),
}


def spec_of(architecture: str, /, **changes: Any) -> Spec:
    return replace(SPECS[architecture], **changes)


def random_tensors(spec: Spec, seed: int = 0) -> dict[str, Floats]:
    """Weights that give logits some spread; biases for qwen2 alone."""
    rng = np.random.default_rng(seed)
    shapes = dict(required(spec))
    if spec.architecture == "qwen2":
        shapes |= {name: shape for name, shape in optional(spec) if not name.endswith("o_bias")}
    tensors: dict[str, Floats] = {}
    for name, shape in shapes.items():
        values = rng.standard_normal(shape, np.float32)
        if name.endswith("norm"):
            values = 1 + values * np.float32(0.1)
        elif len(shape) == 2 and name != "embed":
            values *= np.float32(1.5 / math.sqrt(shape[1]))
        tensors[name] = values
    return tensors


def tiny(architecture: str, /, *, threads: int = 1, seed: int = 0, **changes: Any) -> ReferenceModel:
    spec = spec_of(architecture, **changes)
    return ReferenceModel(spec, random_tensors(spec, seed), threads=threads)


def text(length: int, seed: int = 0, vocab: int = 101) -> tuple[int, ...]:
    return tuple(int(token) for token in np.random.default_rng(seed).integers(0, vocab, length))


def prefilled(model: Model, tokens: Sequence[int]) -> SequenceKV:
    """A sequence that has read `tokens` in one pass."""
    kv = model.open()
    assert isinstance(kv, SequenceKV)
    if tokens:
        with model.forward([ForwardInput(kv, tuple(tokens), logits=False)]) as output:
            output.commit(0, ())
    return kv


def contents(kv: SequenceKV) -> list[NDArray[Any]]:
    """All that a sequence holds: committed keys and values of each layer, and whether anything is left behind them."""
    held: list[NDArray[Any]] = [half for layer in range(len(kv.k)) for half in kv.snapshot(layer)]
    return [*held, np.array([kv.k[:, :, kv.length :].any(), kv.v[:, :, kv.length :].any()])]
