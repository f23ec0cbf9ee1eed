"""Cheaper models: what they say is what the whole model's parts say; what they leave alone stays the same object."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from forerun.backends.cpu import CpuModel, missing_core
from forerun.backends.cpu.options import CpuOptions
from forerun.backends.reference import ReferenceModel
from forerun.core.model import ForwardInput, Model, Needs
from forerun.errors import UsageError
from forerun.weights import Weights
from forerun.weights.derive import Derived, first_layers, head_vectors, requantized, with_head
from forerun.weights.layout import validate
from forerun.weights.tensors import Tensor
from tests.unit.backends.tiny import Floats, spec_of, text
from tests.unit.backends.tiny_cpu import WIDE, encoded, stored

HEAD = np.array([90, 3, 14, 15, 92, 65, 35])
BACKENDS = ["reference", "cpu"] if missing_core() is None else ["reference"]


def weights(architecture: str = "qwen3", kind: str = "mixed", **changes: Any) -> Weights:
    spec = spec_of(architecture, **WIDE | changes)
    tensors = encoded(spec, kind)
    return Weights(Path("tiny.gguf"), "gguf", spec, validate(spec, tensors, Path("tiny.gguf")), {})


def loaded(backend: str, model: Weights) -> Model:
    if backend == "reference":
        return ReferenceModel.from_weights(model, threads=1)
    return CpuModel.from_weights(model, options=CpuOptions(threads=1, cache=False))


def said(backend: str, model: Weights, layer: int = -1) -> tuple[Floats, Floats]:
    """Logits and hidden states of a layer after each token of a text."""
    opened = loaded(backend, model)
    with opened.forward([ForwardInput(opened.open(), text(20))], Needs((layer,), every_row=True)) as output:
        return output.logits(0).copy(), output.hidden(0, layer).copy()


def squared_error(tensor: Tensor, values: Floats) -> float:
    return float(np.mean((tensor.dequantize() - values) ** 2))


def test_four_bits_are_nearer_than_the_range_alone_would_bring_them() -> None:
    values = np.random.default_rng(1).standard_normal((96, 64), np.float32)
    model = weights()
    whole = Weights(model.path, "gguf", model.spec, {"layers.0.q": stored("layers.0.q", values)}, {})
    fitted = requantized(whole, "w4").tensors["layers.0.q"]
    assert (fitted.kind, fitted.shape) == ("Q4_1", values.shape)
    by_range = stored("layers.0.q", values, "Q4_1")
    assert squared_error(fitted, values) < 0.9 * squared_error(by_range, values)
    assert np.abs(fitted.dequantize() - values).max() < 1.2 * np.ptp(values) / 15


@pytest.mark.parametrize("value", [0.0, -3.5, 1e-30])
def test_a_group_of_one_value_stays_that_value(value: float) -> None:
    values = np.full((1, 32), value, np.float32)
    model = weights()
    whole = Weights(model.path, "gguf", model.spec, {"layers.0.q": stored("layers.0.q", values)}, {})
    np.testing.assert_allclose(requantized(whole, "w4").tensors["layers.0.q"].dequantize(), values, atol=1e-7)


@pytest.mark.parametrize(
    ("bits", "kind", "stays"),
    [("w4", "Q4_1", {"Q4_0", "Q4_1"}), ("w8", "Q8_0", {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"})],
)
def test_only_what_is_larger_is_rounded(bits: Literal["w8", "w4"], kind: str, stays: set[str]) -> None:
    model = weights()
    smaller = requantized(model, bits)
    kinds = set()
    for name, tensor in model.tensors.items():
        after = smaller.tensors[name]
        # An embedding beside a head of its own is only read, a row at a time.
        if len(tensor.shape) == 1 or tensor.kind in stays or name == "embed":
            assert after is tensor
        else:
            kinds.add(tensor.kind)
            assert (after.kind, after.shape) == (kind, tensor.shape)
            spread = np.abs(tensor.dequantize()).max()
            assert np.abs(after.dequantize() - tensor.dequantize()).max() < spread * (0.1 if bits == "w4" else 0.01)
    assert len(kinds) >= 2
    assert requantized(smaller, bits) is smaller
    assert (smaller.variant, model.variant) == (bits, "")


def test_a_tied_embedding_is_the_head() -> None:
    tied = requantized(weights("qwen2", "Q8_0", tied=True), "w4")
    assert tied.tensors["embed"].kind == "Q4_1"
    cut = with_head(tied, HEAD)
    assert (cut.spec.tied, cut.spec.head_rows) == (False, len(HEAD))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("architecture", "kind"), [("qwen3", "mixed"), ("gemma3", "Q8_0"), ("qwen2", "F32")])
def test_a_head_says_what_the_whole_one_says_of_its_ids(backend: str, architecture: str, kind: str) -> None:
    model = weights(architecture, kind)
    cut = with_head(model, HEAD)
    whole, hidden = said(backend, model)
    logits, seen = said(backend, cut)
    assert logits.shape == (20, len(HEAD))
    np.testing.assert_array_equal(seen, hidden)
    np.testing.assert_allclose(logits, whole[:, HEAD], rtol=1e-5, atol=1e-5)
    assert loaded(backend, cut).info.head_rows == len(HEAD)
    # Ids outside the head are still read.
    assert set(text(20)) - set(HEAD.tolist())


def test_the_order_of_rounding_and_cutting_does_not_matter() -> None:
    model = weights("gemma3", "F16")
    first, second = with_head(requantized(model, "w4"), HEAD), requantized(with_head(model, HEAD), "w4")
    np.testing.assert_array_equal(first.tensors["head"].data, second.tensors["head"].data)
    assert first.tensors["head"].kind == "Q4_1"


def test_vectors_of_the_head_score_other_ids() -> None:
    model = weights("gemma3", "F32")
    logits, hidden = said("reference", model)
    others = np.array([1, 77, 100])
    np.testing.assert_allclose(hidden @ head_vectors(model, others).T, logits[:, others], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layers", [1, 2])
def test_an_early_exit_sees_what_the_layer_saw(backend: str, layers: int) -> None:
    model = weights("gemma3", "mixed")
    short = first_layers(model, layers)
    np.testing.assert_array_equal(said(backend, short, layers - 1)[1], said(backend, model, layers - 1)[1])
    assert short.spec.sliding == model.spec.sliding[:layers]
    assert all(tensor is model.tensors[name] for name, tensor in short.tensors.items())
    assert validate(short.spec, dict(short.tensors), short.path) == short.tensors


def test_what_is_derived_says_so() -> None:
    model = weights()
    both = with_head(requantized(first_layers(model, 2), "w8"), HEAD)
    assert both.variant.startswith("exit=2,w8,head=")
    assert with_head(model, HEAD).variant != with_head(model, HEAD[::-1]).variant
    assert isinstance(both.tensors["head"], Derived)


@pytest.mark.parametrize("ids", [[], [1, 1], [-1, 2], [101]])
def test_heads_that_cannot_be_cut(ids: list[int]) -> None:
    with pytest.raises(UsageError, match="give different ids from 0 to 100"):
        with_head(weights(), ids)
    with pytest.raises(UsageError, match="7 rows already"):
        with_head(with_head(weights(), HEAD), [1])


@pytest.mark.parametrize("layers", [-1, 0, 3])
def test_exits_that_are_none(layers: int) -> None:
    with pytest.raises(UsageError, match="3 layers"):
        first_layers(weights(), layers)
