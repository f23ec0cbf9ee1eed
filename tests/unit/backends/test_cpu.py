"""The cpu backend beyond the contract: its numbers against the reference decoder, what it refuses, what it survives."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from forerun.backends.cpu import CpuModel, missing_core
from forerun.backends.cpu.options import CpuOptions
from forerun.backends.reference import ReferenceModel
from forerun.core.draft import ROOT, Draft
from forerun.core.model import ForwardInput, Model, Needs
from forerun.errors import BackendError, ModelFileError, UnsupportedModelError, UsageError
from forerun.weights.spec import RopeScaling, Spec
from tests.contract.models import read
from tests.unit.backends.tiny import SPECS, Floats, spec_of, text
from tests.unit.backends.tiny_cpu import WIDE, dequantized, encoded, tiny_cpu

pytestmark = pytest.mark.skipif(missing_core() is not None, reason="the compiled core was not built")

TREE = Draft((7, 8, 9, 10, 11), (ROOT, ROOT, 0, 1, 0))
SCALINGS = {
    "linear": RopeScaling("linear", factor=4.0),
    "llama3": RopeScaling("llama3", factor=8.0, original_context=64, low_freq_factor=1.0, high_freq_factor=4.0),
    "yarn": RopeScaling("yarn", factor=4.0, original_context=100),
    "factors": RopeScaling("factors", frequency_factors=tuple(1.0 + i / 3 for i in range(8))),
}


@pytest.fixture(scope="module")
def model() -> Iterator[CpuModel]:
    model = tiny_cpu("llama")
    yield model
    model.close()


def rows_of(model: Model, tokens: tuple[int, ...], draft: Draft = TREE, needs: Needs | None = None) -> Floats:
    with model.forward([ForwardInput(model.open(), tokens, draft)], needs or Needs(every_row=True)) as output:
        return output.logits(0).copy()


def both(spec: Spec, kind: str = "F32", options: CpuOptions | None = None) -> tuple[Floats, Floats]:
    """Logits of 150 tokens and a tree by the core, and by the reference decoder on the same values."""
    tensors = encoded(spec, kind)
    core = CpuModel(spec, tensors, options=options or CpuOptions(threads=1, kv_dtype="fp32"))
    return rows_of(core, text(150)), rows_of(ReferenceModel(spec, dequantized(tensors), threads=1), text(150))


def relative(found: Floats, wanted: Floats) -> float:
    return float(np.sqrt(np.mean((found - wanted) ** 2)) / wanted.std())


# Numbers


@pytest.mark.parametrize("architecture", SPECS)
def test_fp32_weights_are_the_reference_up_to_rounding(architecture: str) -> None:
    found, wanted = both(SPECS[architecture])
    assert np.allclose(found, wanted, rtol=2e-4, atol=2e-4 * wanted.std())


@pytest.mark.parametrize("scaling", SCALINGS)
def test_rotary_scalings(scaling: str) -> None:
    found, wanted = both(spec_of("llama", rope_scaling=SCALINGS[scaling]))
    plain, _ = both(SPECS["llama"])
    assert np.allclose(found, wanted, rtol=2e-4, atol=2e-4 * wanted.std())
    assert relative(plain, wanted) > 0.01


def test_far_positions_rotate_as_in_the_reference() -> None:
    spec = spec_of("llama", context=70_000, layers=1)
    tensors = encoded(spec, "F32")
    core = CpuModel(spec, tensors, options=CpuOptions(threads=2, kv_dtype="fp32"))
    reference = ReferenceModel(spec, dequantized(tensors), threads=1)
    tokens = text(2_500)
    found, wanted = (rows_of(model, tokens, Draft(), Needs()) for model in (core, reference))
    assert np.allclose(found, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("head_dim", [2, 6, 16, 18, 50, 64, 72, 128, 130, 256])
def test_odd_heads(head_dim: int) -> None:
    spec = spec_of("qwen3", head_dim=head_dim, heads=5, kv_heads=1, query_scale=head_dim**-0.5)
    found, wanted = both(spec)
    assert np.allclose(found, wanted, rtol=2e-4, atol=2e-4 * wanted.std())


@pytest.mark.parametrize("architecture", SPECS)
def test_fp16_keys_and_values_stay_close(architecture: str) -> None:
    found, wanted = both(SPECS[architecture], options=CpuOptions(threads=1))
    assert relative(found, wanted) < 5e-3


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16", "mixed"])
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_quantized_weights_against_their_dequantized_values(architecture: str, kind: str) -> None:
    """What is left is the rounding of activations to 8 bits in groups of 32: a few percent of random logits."""
    found, wanted = both(spec_of(architecture, **WIDE), kind)
    assert relative(found, wanted) < (1e-3 if kind in ("F16", "BF16") else 0.05)


@pytest.mark.parametrize(("quantize", "limit"), [("w8", 0.08), ("w4", 0.6)])
def test_quantizing_at_loading(quantize: str, limit: float) -> None:
    spec = spec_of("llama", **WIDE)
    options = CpuOptions(threads=1, quantize=quantize)  # type: ignore[arg-type]
    found, wanted = both(spec, "BF16", options)
    assert 1e-3 < relative(found, wanted) < limit


def test_embeddings_are_the_files_values() -> None:
    """With one layer that adds nothing, the final norm's output is the norm of the embedding."""
    spec = spec_of("llama", **WIDE, layers=1, tied=True)
    tensors = encoded(spec, "Q4_1")
    zero = {name: replace(tensors[name], stored=np.zeros_like(tensors[name].stored)) for name in tensors}
    tensors |= {name: zero[name] for name in ("layers.0.o", "layers.0.down")}
    core = CpuModel(spec, tensors, options=CpuOptions(threads=1))
    with core.forward([ForwardInput(core.open(), text(20))], Needs(hidden=(0,))) as output:
        assert np.array_equal(output.hidden(0, 0), tensors["embed"].dequantize()[list(text(20))])


def test_hidden_states_are_the_references() -> None:
    spec = SPECS["gemma3"]
    tensors = encoded(spec, "F32")
    layers = (2, ROOT, 0)
    found = []
    for model in (
        CpuModel(spec, tensors, options=CpuOptions(threads=1, kv_dtype="fp32")),
        ReferenceModel(spec, dequantized(tensors), threads=1),
    ):
        inputs = [ForwardInput(model.open(), text(3)), ForwardInput(model.open(), text(300), TREE, logits=True)]
        with model.forward(inputs, Needs(hidden=layers)) as output:
            found.append([output.hidden(i, layer).copy() for i in range(2) for layer in layers])
    for left, right in zip(*found, strict=True):
        assert left.shape == right.shape
        assert np.allclose(left, right, rtol=1e-3, atol=1e-3 * right.std())


# Results and their lifetime


def test_views_outlive_their_pass_and_the_model() -> None:
    model = tiny_cpu("llama")
    with model.forward([ForwardInput(model.open(), text(5))], Needs(hidden=(0,))) as output:
        logits, hidden = output.logits(0), output.hidden(0, 0)
        wanted = logits.copy(), hidden.copy()
    for seed in range(3):
        rows_of(model, text(50, seed))
    model.close()
    del model, output
    assert np.array_equal(logits, wanted[0])
    assert np.array_equal(hidden, wanted[1])


def test_results_end_with_the_pass(model: CpuModel) -> None:
    with model.forward([ForwardInput(model.open(), text(5))]) as output:
        pass
    with pytest.raises(BackendError, match="over"):
        output.commit(0, ())
    with pytest.raises(BackendError, match="over"):
        output.logits(0)
    with pytest.raises(BackendError, match="over"):
        output.hidden(0, 0)


def test_commits_that_do_not_fit(model: CpuModel) -> None:
    with model.forward([ForwardInput(model.open(), (1,), TREE)]) as output:
        for path in ((2,), (0, 1), (1, 0), (0, 2, 4), (5,), (-1,)):
            with pytest.raises(ValueError, match="root"):
                output.commit(0, path)
        output.commit(0, (0, 2))
        with pytest.raises(BackendError, match="committed"):
            output.commit(0, ())
        with pytest.raises(IndexError):
            output.commit(1, ())
        with pytest.raises(BackendError, match="not asked"):
            output.hidden(0, 0)


def test_a_sequence_is_in_one_pass_at_a_time(model: CpuModel) -> None:
    kv = read(model, text(5))
    with (
        pytest.raises(BackendError, match="another pass"),
        model.forward([ForwardInput(kv, (1,)), ForwardInput(kv, (1,))]),
    ):
        pass
    with model.forward([ForwardInput(kv, (1,))]):
        with pytest.raises(BackendError, match="another pass"), model.forward([ForwardInput(kv, (1,))]):
            pass
        with pytest.raises(ValueError, match="pass"):
            kv.truncate(2)
    with model.forward([ForwardInput(kv, (1,))]) as output:
        output.commit(0, ())
    assert kv.length == 6


def test_closing_in_the_middle_of_a_pass(model: CpuModel) -> None:
    before = model.kv_bytes
    kv = model.open()
    with model.forward([ForwardInput(kv, text(5))]) as output:
        kv.close()
        with pytest.raises(BackendError, match="closed"):
            output.commit(0, ())
    assert kv.length == 0
    with pytest.raises(BackendError, match="closed"), model.forward([ForwardInput(kv, (1,))]):
        pass
    with pytest.raises(BackendError, match="closed"):
        kv.fork()
    assert model.kv_bytes - before < 1 << 20


def test_forks_share_pages_until_they_write(model: CpuModel) -> None:
    kv = read(model, text(300))
    held = model.kv_bytes
    forks = [kv.fork() for _ in range(20)]
    assert model.kv_bytes == held
    with model.forward([ForwardInput(fork, (i,)) for i, fork in enumerate(forks)]) as output:
        for i in range(20):
            output.commit(i, ())
    one_page = held / 5
    assert model.kv_bytes - held <= 20.5 * one_page


def test_forking_in_the_middle_of_a_pass(model: CpuModel) -> None:
    kv = read(model, text(70))
    with model.forward([ForwardInput(kv, (1, 2), TREE)]) as output:
        fork = kv.fork()
        output.commit(0, (1, 3))
    with model.forward([ForwardInput(fork, (3,))]) as output:
        assert np.array_equal(output.logits(0), rows_of(model, (*text(70), 3), Draft(), Needs()))
    with model.forward([ForwardInput(kv, (4,))]) as output:
        assert np.array_equal(output.logits(0), rows_of(model, (*text(70), 1, 2, 8, 10, 4), Draft(), Needs()))


# What goes wrong


def test_full_memory_is_an_error_that_changes_nothing() -> None:
    probe = tiny_cpu("llama")
    probe_kv = read(probe, (1,))
    page = probe.kv_bytes
    model = tiny_cpu("llama", options=CpuOptions(threads=1, kv_memory=3 * page))
    kv, other = read(model, text(60)), read(model, text(64))
    with (
        pytest.raises(BackendError, match="full"),
        model.forward([ForwardInput(kv, text(30)), ForwardInput(other, (1,), TREE)]),
    ):
        pass
    assert (kv.length, other.length) == (60, 64)
    with model.forward([ForwardInput(kv, (1,))]) as output:
        assert np.array_equal(output.logits(0), rows_of(probe, (*text(60), 1), Draft(), Needs()))
    assert probe_kv.length == 1


def test_broken_weights_are_an_error() -> None:
    spec = SPECS["llama"]
    tensors = encoded(spec, "F32")
    tensors["norm"].stored.view(np.float32)[0, 3] = np.nan
    model = CpuModel(spec, tensors, options=CpuOptions(threads=1))
    kv = model.open()
    with pytest.raises(BackendError, match="not a number"), model.forward([ForwardInput(kv, (1,))]):
        pass
    assert kv.length == 0


def test_missing_and_misshapen_tensors() -> None:
    spec = SPECS["qwen3"]
    tensors = encoded(spec, "F32")
    for name in ("layers.1.up", "layers.2.q_norm", "norm", "embed", "head"):
        with pytest.raises(ModelFileError, match=name):
            CpuModel(spec, {key: value for key, value in tensors.items() if key != name})
        cut = replace(tensors[name], shape=(*tensors[name].shape[:-1], 7), stored=tensors[name].stored[:, :28])
        with pytest.raises(ModelFileError, match=name):
            CpuModel(spec, tensors | {name: cut})


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": 0},
        {"layers": 10**9},
        {"width": 1 << 40},
        {"heads": 7},
        {"head_dim": 3},
        {"head_dim": 4096},
        {"head_dim": 1 << 50},
        {"context": 1 << 50},
        {"norm_eps": math.nan},
        {"query_scale": math.inf},
        {"rope_base": math.nan},
        {"rope_base": 1e-30},
        {"vocab_size": -1},
    ],
    ids=str,
)
def test_absurd_descriptions(changes: dict[str, float]) -> None:
    spec = replace(SPECS["llama"], **changes)  # type: ignore[arg-type]
    with pytest.raises(ModelFileError):
        CpuModel(spec, encoded(SPECS["llama"], "F32"))


def test_what_it_does_not_run() -> None:
    with pytest.raises(UnsupportedModelError, match=r"mamba.*llama"):
        CpuModel(replace(SPECS["llama"], architecture="mamba"), {})
    tensors = encoded(SPECS["llama"], "F32")
    tensors["embed"] = replace(tensors["embed"], kind="Q1_X")
    with pytest.raises(UnsupportedModelError, match="Q1_X"):
        CpuModel(SPECS["llama"], tensors)


def test_a_closed_model() -> None:
    model = tiny_cpu("llama")
    kv = read(model, (1, 2))
    model.close()
    with pytest.raises(BackendError, match="closed"):
        model.open()
    with pytest.raises(BackendError, match="closed"), model.forward([ForwardInput(kv, (1,))]):
        pass
    assert kv.length == 2


@pytest.mark.parametrize(
    "wrong",
    [{"threads": 0}, {"kv_dtype": "fp8"}, {"quantize": "w2"}, {"kv_memory": 0}, {"context": 0}, {"isa": "sse"}],
    ids=str,
)
def test_options_outside_their_range(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=str(next(iter(wrong.values())))):
        tiny_cpu("llama", options=CpuOptions(**wrong))  # type: ignore[arg-type]


def test_a_shorter_context() -> None:
    model = tiny_cpu("llama", options=CpuOptions(threads=1, context=20))
    assert model.info.context == 20
    with pytest.raises(BackendError, match="20"), model.forward([ForwardInput(model.open(), text(21))]):
        pass


# Threads and signals


def test_threads_can_be_changed(model: CpuModel) -> None:
    wanted = rows_of(model, text(100))
    for threads in (2, 3, 1):
        model.threads = threads
        assert model.threads == threads
        assert np.array_equal(rows_of(model, text(100)), wanted)
    with pytest.raises(UsageError):
        model.threads = 0


def test_passes_from_several_threads_take_turns() -> None:
    model = tiny_cpu("qwen3", "Q8_0", options=CpuOptions(threads=2))
    wanted = [rows_of(model, text(90, seed)) for seed in range(4)]
    wrong: list[int] = []

    def work(seed: int) -> None:
        for _ in range(5):
            kv = model.open()
            for at in range(0, 90, 30):
                with model.forward([ForwardInput(kv, text(90, seed)[at : at + 30])]) as output:
                    last = output.logits(0)[-1].copy()
                    output.commit(0, ())
            if not np.array_equal(last, wanted[seed][89]):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that sends a signal")
def test_a_signal_stops_a_pass_and_rolls_it_back() -> None:
    class StopError(Exception):
        pass

    def stop(number: int, frame: object) -> None:
        raise StopError

    model = tiny_cpu("llama", options=CpuOptions(threads=1, isa="portable"), layers=200, context=4000)
    kv = read(model, (1, 2, 3))
    previous = signal.signal(signal.SIGALRM, stop)
    began = time.perf_counter()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(StopError), model.forward([ForwardInput(kv, text(3_900))]):
            pass
        stopped = time.perf_counter() - began
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert kv.length == 3
    assert stopped < 60  # the whole pass takes minutes
    with model.forward([ForwardInput(kv, (4,))]) as output:
        assert np.array_equal(output.logits(0), rows_of(model, (1, 2, 3, 4), Draft(), Needs()))
