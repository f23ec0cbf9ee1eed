"""Tensors of a .safetensors file, mapped into memory; the header is JSON and every offset in it is checked.

Format: 8 bytes of length, that many bytes of JSON {name: {dtype, shape, data_offsets}}, then the data.
"""

from __future__ import annotations

import json
import math
import mmap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forerun.core.files import refuse_pointer
from forerun.errors import ModelFileError

LONGEST_HEADER = 100_000_000
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


@dataclass(frozen=True)
class Entry:
    """One tensor. data: uint8 `[rows, bytes_per_row]`, one row for vectors and scalars, read-only and mapped."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    data: NDArray[np.uint8]


def read_safetensors(path: Path) -> dict[str, Entry]:
    """Every tensor of the file, by the file's own names. Raises ModelFileError for anything that does not fit."""
    try:
        with path.open("rb") as file:
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError as error:  # an empty file cannot be mapped
        raise _broken(path, "is empty") from error
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    refuse_pointer(path, buffer[:64])
    size = int.from_bytes(buffer[:8], "little")
    if len(buffer) < 8 or size > min(LONGEST_HEADER, len(buffer) - 8):
        raise _broken(path, "is shorter than its header")
    try:
        header = json.loads(buffer[8 : 8 + size])
    except (ValueError, RecursionError) as error:
        raise _broken(path, "has a header that is not JSON") from error
    if not isinstance(header, dict):
        raise _broken(path, "has a header that is not a JSON object")
    data = np.frombuffer(buffer, dtype=np.uint8)[8 + size :]
    return {name: _entry(path, name, row, data) for name, row in header.items() if name != "__metadata__"}


def _entry(path: Path, name: str, row: object, data: NDArray[np.uint8]) -> Entry:
    if not name.isprintable():
        raise _broken(path, f"has a tensor named {name[:80]!r}")
    match row:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]}:
            pass
        case _:
            raise _broken(path, f"describes tensor {name[:80]!r} in an unknown way")
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        raise _broken(path, f"gives tensor {name[:80]!r} the shape {str(shape)[:80]}")
    if not 0 <= begin <= end <= data.size:
        raise _broken(path, f"keeps tensor {name[:80]!r} past its own end: truncated, or not downloaded to the end")
    rows = shape[0] if len(shape) == 2 and end > begin else 1
    # Of a type that is not known here, rows must at least be of one length.
    if (dtype in _BYTES and math.prod(shape) * _BYTES[dtype] != end - begin) or not rows or (end - begin) % rows:
        raise _broken(path, f"keeps tensor {name[:80]!r} in {end - begin} bytes, not the size of its shape")
    return Entry(name, tuple(shape), dtype, data[begin:end].reshape(rows, -1))


def _broken(path: Path, what: str) -> ModelFileError:
    return ModelFileError(f"{path}: {what}: the file is damaged, download it again")
