"""Every implementation of `Model`: one line each, and the suite in test_model_contract.py runs over it.

Requirements on what `make` returns: a vocabulary of at least 50 ids, a context of 200 to 4,000 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.backends.cpu import missing_core
from forerun.backends.cpu.options import CpuOptions
from forerun.backends.toy import ToyKV, ToyModel, random_logits
from forerun.cascade.mixtures import Mixture
from forerun.cascade.model import CascadeKV, CascadeModel
from forerun.core.model import KV, ForwardInput, Model
from tests.unit.backends.tiny import contents, tiny
from tests.unit.backends.tiny_cpu import cpu_contents, tiny_cpu


@dataclass(frozen=True)
class Implementation:
    """A model and how to look into its sequences.

    make: a small model; called once for each test module. contents: all that a KV holds, equal arrays for equal KV.
    """

    name: str
    make: Callable[[], Model]
    contents: Callable[[Any], Sequence[NDArray[Any]]] = field(default=lambda kv: [])


def _toy_contents(kv: ToyKV) -> list[NDArray[Any]]:
    return [np.array(kv.slots)]


def _cascade(rule: str) -> CascadeModel:
    """Two toys; the small one decides alone about half of the time."""
    small = ToyModel(60, 2, random_logits(60, 2, 6.0), context=420)
    return CascadeModel(small, ToyModel(60, 4, random_logits(60, 1), context=400), Mixture(rule, 0.83))


def _cascade_contents(kv: CascadeKV) -> list[NDArray[Any]]:
    """How far the large model has read depends on when it was asked, and changes nothing."""
    assert isinstance(kv.small, ToyKV)
    return [np.array(kv.small.slots), np.array(kv.tokens)]


MODELS: tuple[Implementation, ...] = (
    Implementation("toy", lambda: ToyModel(60, 4, random_logits(60, 1), context=400), _toy_contents),
    Implementation("cascade-plain", lambda: _cascade("chow"), _cascade_contents),
    Implementation("cascade-mixture", lambda: _cascade("v2"), _cascade_contents),
    Implementation("reference-llama", lambda: tiny("llama"), contents),
    Implementation("reference-threads", lambda: tiny("qwen3", threads=3), contents),
    Implementation("reference-heads", lambda: tiny("qwen2"), contents),
    Implementation("reference-sliding", lambda: tiny("gemma3"), contents),
)
if missing_core() is None:
    MODELS += (
        Implementation("cpu-llama", lambda: tiny_cpu("llama"), cpu_contents),
        Implementation("cpu-heads", lambda: tiny_cpu("qwen2", options=CpuOptions(threads=2)), cpu_contents),
        Implementation("cpu-quantized", lambda: tiny_cpu("qwen3", "mixed"), cpu_contents),
        Implementation("cpu-sliding", lambda: tiny_cpu("gemma3", options=CpuOptions(kv_dtype="fp32")), cpu_contents),
        Implementation(
            "cpu-portable", lambda: tiny_cpu("gemma3", "Q8_0", options=CpuOptions(isa="portable")), cpu_contents
        ),
    )


def same(left: Sequence[NDArray[Any]], right: Sequence[NDArray[Any]]) -> bool:
    """Bit for bit, NaN included."""
    return len(left) == len(right) and all(
        a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in zip(left, right, strict=True)
    )


def read(model: Model, tokens: Sequence[int]) -> KV:
    """A fresh sequence that has read `tokens` in one pass."""
    kv = model.open()
    if tokens:
        with model.forward([ForwardInput(kv, tuple(tokens), logits=False)]) as output:
            output.commit(0, ())
    return kv
