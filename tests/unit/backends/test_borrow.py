"""A model's first layers go on from the whole model's KV: as if they had read the text themselves, and it stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forerun.backends.cpu import CpuModel, missing_core
from forerun.backends.cpu.options import CpuOptions
from forerun.backends.reference import ReferenceModel
from forerun.backends.toy import ToyModel, random_logits
from forerun.core.draft import ROOT, Draft
from forerun.core.model import KV, Borrower, ForwardInput
from forerun.errors import BackendError
from tests.unit.backends.tiny import contents, random_tensors, spec_of, text
from tests.unit.backends.tiny_cpu import cpu_contents, encoded

TREE = Draft((7, 8, 9, 10, 11), (ROOT, ROOT, 0, 1, 0))
READ = text(150)
Make = Callable[..., Any]


def _reference(layers: int | None = None, **changes: Any) -> ReferenceModel:
    spec = spec_of("llama", **changes)
    tensors = random_tensors(spec)
    return ReferenceModel(_first(spec, layers), tensors, threads=1)


def _cpu(layers: int | None = None, **changes: Any) -> CpuModel:
    spec = spec_of("llama", **changes)
    tensors = {name: tensor for name, tensor in encoded(spec, "F32").items() if _kept(name, layers)}
    return CpuModel(_first(spec, layers), tensors, options=CpuOptions(threads=1))


def _first(spec: Any, layers: int | None) -> Any:
    return spec if layers is None else replace(spec, layers=layers, sliding=spec.sliding[:layers])


def _kept(name: str, layers: int | None) -> bool:
    return layers is None or not name.startswith("layers.") or int(name.split(".")[1]) < layers


@pytest.fixture(
    params=[
        "reference",
        pytest.param("cpu", marks=pytest.mark.skipif(missing_core() is not None, reason="the core was not built")),
    ]
)
def make(request: pytest.FixtureRequest) -> Make:
    return _reference if request.param == "reference" else _cpu


def held(kv: Any) -> list[np.ndarray[Any, Any]]:
    return cpu_contents(kv) if hasattr(kv, "sequence") else contents(kv)


def same(one: KV, other: KV) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(held(one), held(other), strict=True))


def read(model: Any, tokens: tuple[int, ...], kv: Any = None) -> Any:
    kv = kv or model.open()
    with model.forward([ForwardInput(kv, tokens, logits=False)]) as output:
        output.commit(0, ())
    return kv


def test_what_is_borrowed_is_what_the_first_layers_would_have_read(make: Make) -> None:
    whole, first = make(), make(layers=2)
    lent = read(whole, READ)
    before = held(lent)
    borrowed, own = first.borrow(lent), read(first, READ)
    assert borrowed.length == own.length == len(READ)
    assert same(borrowed, own)
    for kv in (borrowed, own):
        with first.forward([ForwardInput(kv, (5,), TREE)]) as output:
            rows = output.logits(0).copy()
            output.commit(0, (0, 2))
        if kv is borrowed:
            found = rows
    assert np.array_equal(found, rows)
    assert same(borrowed, own)
    assert all(np.array_equal(a, b) for a, b in zip(held(lent), before, strict=True))


def test_lender_and_borrower_grow_apart(make: Make) -> None:
    whole, first = make(), make(layers=2)
    lent = read(whole, READ)
    borrowed = first.borrow(lent)
    read(first, (1, 2, 3), borrowed)
    read(whole, (4,), lent)
    assert (borrowed.length, lent.length) == (len(READ) + 3, len(READ) + 1)
    assert same(borrowed, read(first, (*READ, 1, 2, 3)))
    assert same(lent, read(whole, (*READ, 4)))
    borrowed.truncate(10)
    assert same(borrowed, read(first, READ[:10]))
    lent.close()
    assert same(read(first, READ[10:], borrowed), read(first, READ))
    borrowed.close()


def test_which_models_borrow(make: Make) -> None:
    assert isinstance(make(), Borrower)
    assert not isinstance(ToyModel(60, 2, random_logits(60, 2, 6.0)), Borrower)


def test_what_is_stored_otherwise_is_refused(make: Make) -> None:
    whole, first = make(), make(layers=2)
    for lender, borrower in ((first, whole), (make(heads=6, kv_heads=3), first), (make(head_dim=32), first)):
        with pytest.raises(BackendError, match=r"borrow"):
            borrower.borrow(read(lender, (1, 2)))
    with pytest.raises(BackendError, match=r"borrow"):
        first.borrow(ToyModel(60, 2, random_logits(60, 2, 6.0)).open())
    gone = read(whole, (1, 2))
    gone.close()
    with pytest.raises(BackendError, match=r"closed"):
        first.borrow(gone)
