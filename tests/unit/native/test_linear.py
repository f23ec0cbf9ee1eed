"""Packed weights give back exactly what GGUF's reference dequantizer gives, for every type and any bit pattern."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

core: Any = pytest.importorskip("forerun.backends.cpu._core", reason="the compiled core is not built")

KINDS = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13,
    "Q6_K": 14, "IQ4_NL": 20, "IQ4_XS": 23, "BF16": 30,
}  # fmt: skip


def file_rows(kind: str, rows: int, columns: int, seed: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Random bytes `[rows, row bytes]`: every bit pattern, infinities and NaNs of fp16 included."""
    return np.random.default_rng(seed).integers(0, 256, (rows, core.row_bytes(KINDS[kind], columns)), dtype=np.uint8)


def reference(kind: str, data: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    with np.errstate(all="ignore"):
        return np.asarray(dequantize(data, GGMLQuantizationType[kind]), dtype=np.float32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "columns"), [(1, 256), (16, 512), (37, 1280)])
def test_packing_loses_nothing(kind: str, rows: int, columns: int) -> None:
    data = file_rows(kind, rows, columns, seed=rows)
    expected = reference(kind, data)
    matrix = core.PackedMatrix.pack(KINDS[kind], rows, columns, data.reshape(-1))
    got = np.stack([np.asarray(matrix.row(r)).reshape(-1) for r in range(rows)])
    assert got.shape == (rows, columns)
    number = ~np.isnan(expected)
    assert number.mean() > 0.5
    np.testing.assert_array_equal(np.isnan(got), ~number)
    np.testing.assert_array_equal(got[number].view(np.uint32), expected[number].view(np.uint32))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL"])
def test_rows_of_one_group(kind: str) -> None:
    data = file_rows(kind, 3, 32, seed=1)
    data[:, 1] &= 0x3F  # the scale is finite
    matrix = core.PackedMatrix.pack(KINDS[kind], 3, 32, data.reshape(-1))
    np.testing.assert_array_equal(np.asarray(matrix.row(2)).reshape(-1), reference(kind, data)[2])


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_K", "Q6_K"])
def test_a_blob_in_the_file_is_as_large_as_the_weights(kind: str) -> None:
    blob, file = core.packed_bytes(KINDS[kind], 1536, 1536), 1536 * core.row_bytes(KINDS[kind], 1536)
    assert file <= blob <= 1.01 * file


def test_wrong_sizes_are_refused() -> None:
    data = file_rows("Q4_K", 2, 256, seed=3).reshape(-1)
    with pytest.raises(ValueError, match="multiple of 256 columns"):
        core.PackedMatrix.pack(KINDS["Q4_K"], 2, 128, data)
    with pytest.raises(ValueError, match="bytes, not"):
        core.PackedMatrix.pack(KINDS["Q4_K"], 3, 256, data)
    with pytest.raises(ValueError, match="no tensor type"):
        core.PackedMatrix.pack(9, 2, 256, data)
