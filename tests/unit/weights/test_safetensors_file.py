"""Safetensors files: what is in them, and that whatever is wrong with one is said of that file."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forerun.errors import ModelFileError
from forerun.weights.safetensors_file import read_safetensors

MATRIX = np.arange(6, dtype=np.float32).reshape(2, 3)
ENTRY = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def written(path: Path, header: Any, data: bytes = MATRIX.tobytes()) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def test_matrices_vectors_scalars_and_empty_ones(file: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "matrix": ENTRY,
        "vector": {"dtype": "F16", "shape": [4], "data_offsets": [24, 32]},
        "scalar": {"dtype": "I64", "shape": [], "data_offsets": [32, 40]},
        "none": {"dtype": "F32", "shape": [0, 3], "data_offsets": [40, 40]},
        "nothing": {"dtype": "F32", "shape": [2**63, 0], "data_offsets": [40, 40]},
    }
    found = read_safetensors(written(file, header, MATRIX.tobytes() + bytes(16)))
    assert list(found) == list(header)[1:]
    assert {name: entry.data.shape for name, entry in found.items()} == {
        "matrix": (2, 12), "vector": (1, 8), "scalar": (1, 8), "none": (1, 0), "nothing": (1, 0),
    }  # fmt: skip
    assert (found["matrix"].data.view(np.float32) == MATRIX).all()
    assert (found["scalar"].shape, found["scalar"].dtype) == ((), "I64")
    assert not found["matrix"].data.flags.writeable


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b"{", "has a header that is not JSON"),
        (b"\xff", "has a header that is not JSON"),
        (b"[" * 100_000, "has a header that is not JSON"),
        ([], "has a header that is not a JSON object"),
        ({"a": 3}, "in an unknown way"),
        ({"a": {**ENTRY, "dtype": 3}}, "in an unknown way"),
        ({"a": {**ENTRY, "data_offsets": [0]}}, "in an unknown way"),
        ({"a": {**ENTRY, "shape": [-2, -3]}}, "the shape"),
        ({"a": {**ENTRY, "shape": ["2", 3]}}, "the shape"),
        ({"a": {**ENTRY, "data_offsets": [0, 25]}}, "past its own end"),
        ({"a": {**ENTRY, "data_offsets": [-1, 23]}}, "past its own end"),
        ({"a": {**ENTRY, "data_offsets": [20, 4]}}, "past its own end"),
        ({"a": {**ENTRY, "shape": [2, 2]}}, "not the size of its shape"),
        ({"a": {**ENTRY, "shape": [2**63, 2**63]}}, "not the size of its shape"),
        ({"a": {**ENTRY, "dtype": "F8_E4M3", "shape": [5, 5]}}, "not the size of its shape"),
        ({"a": {**ENTRY, "dtype": "F8_E4M3", "shape": [0, 5]}}, "not the size of its shape"),
        ({"a\x1b[31m": ENTRY}, "has a tensor named"),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_what_is_wrong_is_said_of_the_file(file: Path, header: Any, says: str) -> None:
    with pytest.raises(ModelFileError) as refused:
        read_safetensors(written(file, header))
    assert str(refused.value).startswith(f"{file}: ")
    assert says in str(refused.value)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("content", [b"", b"1234567", (2**60).to_bytes(8, "little"), (9).to_bytes(8, "little") + b"{}"])
def test_files_that_end_too_early(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"is empty|is shorter than its header"):
        read_safetensors(file)


def test_a_file_that_is_not_there(file: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_safetensors(file)


def test_damaged_anywhere_it_is_read_or_refused(file: Path) -> None:
    whole = written(file, {"matrix": ENTRY, "other": {**ENTRY, "data_offsets": [24, 48]}}, MATRIX.tobytes() * 2)
    good = whole.read_bytes()
    rng = random.Random(0)
    for _ in range(300):
        bad = bytearray(good[: rng.randrange(len(good)) or 1] if rng.random() < 0.3 else good)
        for _ in range(rng.randint(0, 3)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        file.unlink()  # what was mapped before stays as it is
        file.write_bytes(bad)
        try:
            for entry in read_safetensors(file).values():
                assert entry.data.nbytes >= 0
        except ModelFileError:
            pass
