"""The reference model beyond the contract: what it refuses, what it survives, and every architecture's invariance."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from forerun.backends.kv import SequenceKV
from forerun.backends.reference import ReferenceModel
from forerun.core.draft import ROOT, Draft
from forerun.core.model import ForwardInput, Needs
from forerun.errors import BackendError, ModelFileError, UnsupportedModelError
from tests.unit.backends.tiny import SPECS, Floats, contents, prefilled, random_tensors, spec_of, text, tiny

TREE = Draft((7, 8, 9, 10, 11), (ROOT, ROOT, 0, 1, 0))


@pytest.fixture(scope="module")
def model() -> Iterator[ReferenceModel]:
    model = tiny("llama")
    yield model
    model.close()


def logits(model: ReferenceModel, tokens: tuple[int, ...]) -> Floats:
    with model.forward([ForwardInput(model.open(), tokens)]) as output:
        found: Floats = output.logits(0)[-1].copy()
    return found


@pytest.mark.parametrize("architecture", SPECS)
def test_the_same_bits_in_any_company(architecture: str) -> None:
    """A long prompt beside trees, on several threads, against everything alone on one."""
    alone, together = tiny(architecture), tiny(architecture, threads=3)
    texts = [text(150, 1), text(63, 2), text(90, 3)]
    inputs = [
        ForwardInput(together.open(), texts[0]),
        ForwardInput(prefilled(together, texts[1][:-1]), texts[1][-1:], TREE),
        ForwardInput(prefilled(together, texts[2][:-1]), texts[2][-1:], Draft.chain((5, 6, 7))),
    ]
    with together.forward(inputs) as output:
        rows = [output.logits(i).copy() for i in range(3)]
        output.commit(1, (1, 3))
    for tokens, feed, mine in zip(texts, inputs, rows, strict=True):
        for node in range(ROOT, len(feed.draft)):
            path = tuple(feed.draft.tokens[n] for n in feed.draft.path_to(node))
            assert np.array_equal(mine[1 + node], logits(alone, tokens + path))
    kept = inputs[1].kv
    assert isinstance(kept, SequenceKV)
    for left, right in zip(contents(kept), contents(prefilled(alone, (*texts[1], 8, 10))), strict=True):
        assert np.array_equal(left, right)
    together.close()


def test_a_single_head_over_many_blocks() -> None:
    """With one head, sums over blocks run along contiguous memory, where numpy would regroup them by their number."""
    model = tiny("llama", heads=1, kv_heads=1, context=1000)
    tokens = text(800)
    # Behind 30 tokens the rows that are computed together reach into two blocks.
    with model.forward([ForwardInput(prefilled(model, tokens[:30]), tokens[30:])], Needs(every_row=True)) as output:
        rows = output.logits(0).copy()
    for end in (500, 577, 640, 770):
        with model.forward([ForwardInput(prefilled(model, tokens[: end - 1]), (tokens[end - 1],))]) as output:
            assert np.array_equal(output.logits(0)[0], rows[end - 31])


def test_hidden_states_are_the_layers_outputs(model: ReferenceModel) -> None:
    """Of the last layer by the final norm; of an earlier one by a model that ends there."""
    spec = model.spec
    tensors = random_tensors(spec)
    tokens = text(20)
    with model.forward([ForwardInput(model.open(), tokens)], Needs(hidden=(0, 1, 2, -1))) as output:
        hidden = {layer: output.hidden(0, layer).copy() for layer in (0, 1, 2, -1)}
        last = output.logits(0).copy()
    for layer in (0, 1, 2):
        x = hidden[layer]
        final = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(spec.norm_eps)) * tensors["norm"]
        cut = ReferenceModel(spec_of("llama", layers=layer + 1), tensors, threads=1)
        assert np.abs(final[-1] @ tensors["head"].T - logits(cut, tokens)).max() < 1e-3
    assert np.abs(hidden[-1][-1] @ tensors["head"].T - last).max() < 1e-3


def test_only_rows_that_are_asked_for_meet_the_head(model: ReferenceModel) -> None:
    with model.forward([ForwardInput(model.open(), text(30), logits=False)], Needs(every_row=True)) as output:
        assert output.logits(0).shape == (30, 101)
    with model.forward([ForwardInput(model.open(), text(30), logits=False)]) as output:
        assert output.logits(0).shape == (0, 101)


@pytest.mark.parametrize("path", [(1, 2), (2,), (0, 0), (5,), (-1,)])
def test_commit_refuses_what_is_no_path(model: ReferenceModel, path: tuple[int, ...]) -> None:
    kv = prefilled(model, text(3))
    with model.forward([ForwardInput(kv, (1,), TREE)]) as output:
        with pytest.raises(ValueError, match="root down"):
            output.commit(0, path)
        assert kv.in_pass
        output.commit(0, (0, 4))
    assert kv.length == 6


def test_commit_happens_once_and_in_the_pass(model: ReferenceModel) -> None:
    kv, closed = prefilled(model, text(3)), prefilled(model, text(3))
    with model.forward([ForwardInput(kv, (1,)), ForwardInput(closed, (1,))]) as output:
        output.commit(0, ())
        closed.close()
        for index in (0, 1):
            with pytest.raises(BackendError, match="nothing to commit"):
                output.commit(index, ())
    with model.forward([ForwardInput(kv, (1,))]) as output:
        pass
    with pytest.raises(BackendError, match="nothing to commit"):
        output.commit(0, ())
    assert kv.length == 4


def test_a_pass_inside_a_pass(model: ReferenceModel) -> None:
    """Other sequences may run meanwhile (a model that drafts for itself); the same one may not."""
    outer, inner = prefilled(model, text(3)), prefilled(model, text(9))
    with model.forward([ForwardInput(outer, (1,))]) as output:
        with pytest.raises(BackendError, match="already in a pass"), model.forward([ForwardInput(outer, (1,))]):
            pass
        with model.forward([ForwardInput(inner, (2,))]) as second:
            second.commit(0, ())
        output.commit(0, ())
        # Once committed a sequence is free again, also for the next pass.
        with model.forward([ForwardInput(outer, (2,))]) as third:
            third.commit(0, ())
    assert (outer.length, inner.length) == (5, 10)


def test_feeds_that_cannot_be(model: ReferenceModel) -> None:
    kv, closed = model.open(), model.open()
    closed.close()
    other = tiny("llama")
    for inputs, match in (
        ([ForwardInput(kv, ())], "an input has no tokens"),
        ([ForwardInput(kv, (1,)), ForwardInput(kv, (2,))], "twice"),
        ([ForwardInput(closed, (1,))], "closed"),
        ([ForwardInput(other.open(), (1,))], "did not open"),
    ):
        with pytest.raises(BackendError, match=match), model.forward(inputs):
            pass
    with pytest.raises(BackendError, match="no layer 3"), model.forward([ForwardInput(kv, (1,))], Needs(hidden=(3,))):
        pass
    assert (kv.length, kv.nbytes) == (0, 0)


def test_out_of_memory_leaves_sequences_as_they_were(model: ReferenceModel, monkeypatch: pytest.MonkeyPatch) -> None:
    kvs = [prefilled(model, text(5)), prefilled(model, text(64))]
    with monkeypatch.context() as patch:
        patch.setattr(
            SequenceKV, "_grow", lambda self, slots: (_ for _ in ()).throw(MemoryError) if slots > 64 else None
        )
        with pytest.raises(BackendError, match="memory"), model.forward([ForwardInput(kv, (1,), TREE) for kv in kvs]):
            pass
        with pytest.raises(BackendError, match="memory"):
            _ = SequenceKV.fork(_long(model))
    for kv, length in zip(kvs, (5, 64), strict=True):
        assert not kv.in_pass
        for left, right in zip(contents(kv), contents(prefilled(model, text(length))), strict=True):
            assert np.array_equal(left, right)


def _long(model: ReferenceModel) -> SequenceKV:
    kv = model.open()
    kv._length = 100
    return kv


def test_broken_weights_give_broken_logits_and_no_warning() -> None:
    spec = spec_of("gemma3")
    tensors = random_tensors(spec)
    tensors["layers.1.gate"][3, 3] = np.inf
    model = ReferenceModel(spec, tensors, threads=2)
    kv = prefilled(model, text(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with model.forward([ForwardInput(kv, (1,), TREE)]) as output:
            assert np.isnan(output.logits(0)).all()
    # What rolls back leaves no NaN behind for the next pass to multiply with zero.
    assert not kv.k[:, :, 3:].any()


def test_info(model: ReferenceModel) -> None:
    spec = spec_of("llama")
    info = ReferenceModel(spec, random_tensors(spec), name="mine", usable_vocab=90, context=77, threads=1).info
    assert (info.name, info.backend, info.vocab_size, info.usable_vocab, info.context) == (
        "mine",
        "reference",
        101,
        90,
        77,
    )
    assert (info.hidden, info.width, info.batch_invariant, info.tree, info.rollback) == (3, 48, True, True, True)
    assert (model.info.name, model.info.usable_vocab, model.info.context) == ("tiny", 101, 400)
    assert ReferenceModel(spec, random_tensors(spec), usable_vocab=200, context=999, threads=1).info == model.info


def test_a_closed_model_says_so() -> None:
    model = tiny("llama", threads=2)
    kv = prefilled(model, text(3))
    model.close()
    model.close()
    with pytest.raises(BackendError, match="closed"), model.forward([ForwardInput(kv, (1,))]):
        pass
    kv.close()


def test_weights_that_do_not_fit() -> None:
    spec = spec_of("qwen2")
    tensors = random_tensors(spec)
    with pytest.raises(ModelFileError, match=r"layers\.2\.down is missing"):
        ReferenceModel(spec, {name: t for name, t in tensors.items() if name != "layers.2.down"}, threads=1)
    with pytest.raises(ModelFileError, match=r"layers\.0\.k_bias has shape \[3\]"):
        ReferenceModel(spec, tensors | {"layers.0.k_bias": np.zeros(3, np.float32)}, threads=1)
    with pytest.raises(UnsupportedModelError, match="mamba"):
        ReferenceModel(replace(spec, architecture="mamba"), tensors, threads=1)


def test_a_bias_of_some_projections_alone() -> None:
    spec = spec_of("llama")
    tensors = random_tensors(spec)
    biased = tensors | {"layers.0.k_bias": np.zeros(32, np.float32), "layers.1.o_bias": np.zeros(48, np.float32)}
    assert np.array_equal(logits(ReferenceModel(spec, biased, threads=1), (1, 2)), logits(tiny("llama"), (1, 2)))
    biased["layers.1.o_bias"] += 1
    assert not np.array_equal(logits(ReferenceModel(spec, biased, threads=1), (1, 2)), logits(tiny("llama"), (1, 2)))
