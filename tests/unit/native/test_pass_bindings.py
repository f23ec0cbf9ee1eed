"""The core's Python surface against callers that are wrong: every mistake is an exception, none ends the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.backends.cpu import missing_core

pytestmark = pytest.mark.skipif(missing_core() is not None, reason="the compiled core was not built")

if missing_core() is None:
    from forerun.backends.cpu import _core

Q8_0, F32 = 8, 0


def shape(**changes: Any) -> Any:
    made = _core.Shape()
    made.vocab, made.width, made.layers, made.heads, made.kv_heads, made.head_dim = 20, 32, 1, 2, 1, 16
    made.ffn, made.context, made.norm_eps, made.windows, made.local = 32, 100, 1e-5, [0], [0]
    made.frequencies = [0.5] * 8
    made.tied = True
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def loaded() -> Any:
    model = _core.Model(shape(), 1)
    rng = np.random.default_rng(0)
    sizes = {
        "q": (32, 32),
        "k": (16, 32),
        "v": (16, 32),
        "o": (32, 32),
        "gate": (32, 32),
        "up": (32, 32),
        "down": (32, 32),
    }
    model.set_matrix("embed", packed(rng, 20, 32))
    for name, (rows, columns) in sizes.items():
        model.set_matrix(f"layers.0.{name}", packed(rng, rows, columns))
    for name in ("norm", "layers.0.attn_norm", "layers.0.ffn_norm"):
        model.set_vector(name, np.ones(32, np.float32))
    model.finish()
    return model


def packed(rng: np.random.Generator, rows: int, columns: int) -> Any:
    values = rng.standard_normal(rows * columns).astype(np.float32)
    return _core.PackedMatrix.pack(F32, rows, columns, values.view(np.uint8))


def test_a_model_by_hand_runs() -> None:
    model = loaded()
    done = model.forward([(model.open(), [1, 2, 3], [4, 5], [-1, 0], True)], [0, -1])
    assert done.logits(0).shape == (3, 20)
    assert done.hidden(0, -1).shape == (5, 32)
    done.close()
    done.close()


@pytest.mark.parametrize(
    "call",
    [
        lambda: _core.PackedMatrix.pack(99, 1, 32, np.zeros(34, np.uint8)),
        lambda: _core.PackedMatrix.pack(Q8_0, 1, 32, np.zeros(33, np.uint8)),
        lambda: _core.PackedMatrix.pack(Q8_0, 1, 33, np.zeros(34, np.uint8)),
        lambda: _core.PackedMatrix.pack(Q8_0, 0, 32, np.zeros(0, np.uint8)),
        lambda: _core.PackedMatrix.pack(Q8_0, 1 << 62, 32, np.zeros(34, np.uint8)),
        lambda: _core.PackedMatrix.pack(Q8_0, 1 << 40, 1 << 40, np.zeros(34, np.uint8)),
        lambda: _core.packed_bytes(Q8_0, 1 << 60, 32),
        lambda: _core.pack_into(Q8_0, 1, 32, np.zeros(34, np.uint8), np.zeros(64, np.uint8)),
        lambda: _core.quantize(np.zeros(64, np.float32), 2, 33, True, np.zeros(68, np.uint8)),
        lambda: _core.quantize(np.zeros(64, np.float32), 0, 32, True, np.zeros(68, np.uint8)),
        lambda: _core.quantize(np.zeros(64, np.float32), 2, 32, True, np.zeros(67, np.uint8)),
        lambda: _core.row_bytes(Q8_0, 31),
        lambda: _core.Model(shape(), 1, True, 1 << 30, "mmx"),
        lambda: _core.Model(shape(heads=3, kv_heads=2), 1),
        lambda: _core.Model(shape(windows=[]), 1),
        lambda: _core.Model(shape(local=[1]), 1),
        lambda: _core.Model(shape(frequencies=[0.5] * 7), 1),
        lambda: _core.Model(shape(frequencies=[float("nan")] * 8), 1),
        lambda: _core.Model(shape(layers=1 << 50), 1),
        lambda: loaded().set_matrix("layers.1.q", packed(np.random.default_rng(0), 32, 32)),
        lambda: loaded().set_matrix("layers.0.q", packed(np.random.default_rng(0), 31, 32)),
        lambda: loaded().set_vector("norm", np.zeros(31, np.float32)),
        lambda: loaded().set_vector("layers.0.q_norm", np.zeros(16, np.float32)),
        lambda: _core.Model(shape(), 1).finish(),
    ],
)  # fmt: skip
def test_sizes_and_names_that_do_not_fit(call: Callable[[], object]) -> None:
    with pytest.raises((ValueError, MemoryError)):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: _core.PackedMatrix.pack(F32, 1, 8, np.zeros(8, np.float32)),
        lambda: _core.PackedMatrix.pack(F32, 1, 8, np.zeros((4, 8), np.uint8)),
        lambda: _core.PackedMatrix.pack(F32, 1, 8, np.zeros(64, np.uint8)[::2]),
        lambda: _core.PackedMatrix.pack(F32, -1, 8, np.zeros(32, np.uint8)),
        lambda: _core.pack_into(F32, 1, 8, np.zeros(32, np.uint8), np.zeros(1000, np.uint8)[::2]),
        lambda: loaded().set_vector("norm", np.zeros(32, np.float64)),
        lambda: loaded().set_matrix("norm", np.zeros(32, np.float32)),
        lambda: loaded().forward([(None, [1], [], [], True)]),
        lambda: loaded().forward([("sequence", [1], [], [], True)]),
        lambda: loaded().forward([(loaded().open(), [1 << 40], [], [], True)]),
        lambda: loaded().forward([(loaded().open(), ["a"], [], [], True)]),
        lambda: loaded().forward([(loaded().open(), [1])]),
        lambda: loaded().forward(7),
    ],
)
def test_types_that_do_not_fit(call: Callable[[], object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        call()


def test_a_read_only_destination_is_refused() -> None:
    destination = np.zeros(4096, np.uint8)
    destination.flags.writeable = False
    with pytest.raises((TypeError, ValueError, BufferError)):
        _core.pack_into(F32, 1, 8, np.zeros(32, np.uint8), destination)


def test_what_passes_refuse() -> None:
    model, other = loaded(), loaded()
    sequence = model.open()
    inputs: list[list[Any]] = [
        [(other.open(), [1], [], [], True)],
        [(sequence, [], [], [], True)],
        [(sequence, [20], [], [], True)],
        [(sequence, [-1], [], [], True)],
        [(sequence, [1] * 101, [], [], True)],
        [(sequence, [1], [2], [], True)],
        [(sequence, [1], [2, 3], [-1, 1], True)],
        [(sequence, [1], [2, 3], [-1, -2], True)],
        [(sequence, [1], [2] * 5000, [-1] * 5000, True)],
        [(sequence, [1], [], [], True), (sequence, [1], [], [], True)],
    ]
    for feed in inputs:
        with pytest.raises((RuntimeError, ValueError)):
            model.forward(feed)
    for layer in (1, -2, 1000):
        with pytest.raises(ValueError, match="layer"):
            model.forward([(sequence, [1], [], [], True)], [layer])
    assert sequence.length == 0
    done = model.forward([(sequence, [1], [2], [-1], True)])
    for index in (1, 1 << 40):
        with pytest.raises(IndexError):
            done.logits(index)
        with pytest.raises(IndexError):
            done.commit(index, [])
    with pytest.raises(TypeError):
        done.logits(-1)
    done.commit(0, [0])
    with pytest.raises(IndexError):
        sequence.snapshot(1)
    with pytest.raises(IndexError):
        sequence.snapshot(-1)
    with pytest.raises(_core.PassError, match="loaded"):
        _core.Model(shape(), 1).forward([])


def test_nothing_outlives_what_it_stands_on() -> None:
    """Results, sequences and mapped matrices keep what they need alive, in whatever order names go away."""
    model = loaded()
    blob = np.zeros(_core.packed_bytes(F32, 32, 32) + 64, np.uint8)
    blob = blob[-blob.ctypes.data % 64 :][: _core.packed_bytes(F32, 32, 32)]
    _core.pack_into(F32, 32, 32, np.ones(1024, np.float32).view(np.uint8), blob)
    model.set_matrix("layers.0.up", _core.PackedMatrix.view(blob))
    del blob
    sequence = model.open()
    fork = sequence.fork()
    done = model.forward([(sequence, [1, 2], [], [], True)])
    del model, sequence
    rows = done.logits(0)
    done.commit(0, [])
    del done
    wanted = rows.copy()
    np.zeros(1 << 20)
    assert np.array_equal(rows, wanted)
    assert fork.length == 0
    fork.close()


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=600), st.integers(0, 40), st.integers(0, 255))
def test_any_bytes_are_a_matrix_or_an_error(noise: bytes, at: int, byte: int) -> None:
    """A valid blob with one byte changed, or noise: refused, or readable to its last row."""
    good = np.zeros(_core.packed_bytes(Q8_0, 20, 64) + 64, np.uint8)
    good = good[-good.ctypes.data % 64 :][: _core.packed_bytes(Q8_0, 20, 64)]
    _core.pack_into(Q8_0, 20, 64, np.ones(20 * 68, np.uint8), good)
    good[at] = byte
    for blob in (good, np.frombuffer(noise, np.uint8)):
        try:
            matrix = _core.PackedMatrix.view(blob)
        except ValueError:
            continue
        assert matrix.row(matrix.rows - 1).shape == (1, matrix.columns)
        with pytest.raises(IndexError):
            matrix.row(matrix.rows)
