"""Header of a GGUF file: key-values and the table of tensors, every count and offset checked before it is trusted.

The `gguf` package's own reader makes an object of every string, which takes ten seconds for a vocabulary of 150,000
tokens; here long arrays are only walked over, and decoded when somebody touches them. Versions 2 and 3, little-endian.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from forerun.core.files import refuse_pointer
from forerun.errors import ModelFileError, UnsupportedModelError

MAGIC = b"GGUF"
LONGEST_NAME = 65_535
MOST_DIMENSIONS = 4
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True)
class TensorEntry:
    """A row of the table of tensors. shape: (rows, columns) or (n,); data: uint8 `[rows, bytes_per_row]`, mapped."""

    name: str
    shape: tuple[int, ...]
    kind: str
    data: NDArray[np.uint8]


@dataclass(frozen=True)
class Header:
    """A GGUF file without its arithmetic. Values of `metadata` are Python scalars, strings, arrays or `Strings`."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorEntry]


class Strings(Sequence[str]):
    """An array of strings in the file, decoded as a whole on first use."""

    def __init__(self, buffer: mmap.mmap, start: int, count: int, owner: str) -> None:
        self._buffer, self._start, self._count, self._owner = buffer, start, count, owner
        self._decoded: list[str] | None = None

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self._all()[index]

    def _all(self) -> list[str]:
        if self._decoded is None:
            position, texts = self._start, []
            for _ in range(self._count):
                (size,) = _U64.unpack_from(self._buffer, position)
                position += 8 + size
                texts.append(self._buffer[position - size : position])
            try:
                self._decoded = [text.decode() for text in texts]
            except UnicodeDecodeError as error:
                raise ModelFileError(f"{self._owner} holds a string that is not UTF-8: the file is damaged") from error
        return self._decoded


def read_header(path: Path, *, with_tensors: bool = True) -> Header:
    """The header of a GGUF file; its data stays mapped.

    Raises ModelFileError for anything that does not fit the file, UnsupportedModelError for another version or encoding.
    """
    try:
        with path.open("rb") as file:
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError as error:  # an empty file cannot be mapped
        raise ModelFileError(f"{path}: is empty: download it again") from error
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    return _Cursor(path, buffer).header(with_tensors)


class _Cursor:
    """Walks over a mapped file and refuses to leave it."""

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self._path, self._buffer, self._end, self._at = path, buffer, len(buffer), 0

    def header(self, with_tensors: bool) -> Header:
        refuse_pointer(self._path, self._buffer[:64])
        if self._take(4) != MAGIC:
            raise ModelFileError(f"{self._path}: is not a GGUF file: give a .gguf file or a Hugging Face folder")
        version = self._u32()
        if version not in (2, 3):
            raise UnsupportedModelError(
                f"{self._path}: GGUF version {version} is not read (2 and 3, little-endian, are): convert the file again"
            )
        tensor_count, value_count = self._u64(), self._u64()
        # The shortest key-value takes 13 bytes and the shortest tensor entry 25.
        if tensor_count * 25 + value_count * 13 > self._end:
            raise self._broken(
                f"announces {tensor_count} tensors and {value_count} values, more than the file can hold"
            )
        metadata: dict[str, Any] = {}
        for _ in range(value_count):
            key = self._string("a key")
            if key in metadata:
                raise self._broken(f"has the key {key[:80]!r} twice")
            metadata[key] = self._value(self._u32(), key)
        tensors = self._tensors(tensor_count, metadata) if with_tensors else {}
        return Header(self._path, metadata, tensors)

    def _tensors(self, count: int, metadata: dict[str, Any]) -> dict[str, TensorEntry]:
        table: list[tuple[str, tuple[int, ...], str, int, int]] = []
        for _ in range(count):
            name = self._string("a tensor's name")
            if not name.isprintable():
                raise self._broken(f"has a tensor named {name[:80]!r}")
            dimensions = self._u32()
            if not 1 <= dimensions <= MOST_DIMENSIONS:
                raise self._broken(f"gives tensor {name[:80]!r} {dimensions} dimensions")
            sizes = [self._u64() for _ in range(dimensions)]
            number, offset = self._u32(), self._u64()
            kind, row_bytes = self._encoding(name, number, sizes[0])
            table.append((name, _shape(sizes), kind, row_bytes, offset))
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1) or alignment > 1 << 20:
            raise self._broken(f"asks for an alignment of {alignment!r}")
        start = -(-self._at // alignment) * alignment
        everything = np.frombuffer(self._buffer, dtype=np.uint8)
        tensors: dict[str, TensorEntry] = {}
        for name, shape, kind, row_bytes, offset in table:
            rows = shape[0] if len(shape) == 2 else 1
            begin, end = start + offset, start + offset + rows * row_bytes
            if end > self._end:
                raise self._broken(
                    f"tensor {name} ends at byte {end} of {self._end}: truncated, or not downloaded to the end"
                )
            if offset % alignment or name in tensors:
                raise self._broken(f"lists tensor {name} {'twice' if name in tensors else 'at a misaligned place'}")
            tensors[name] = TensorEntry(name, shape, kind, everything[begin:end].reshape(rows, row_bytes))
        return tensors

    def _encoding(self, name: str, number: int, columns: int) -> tuple[str, int]:
        """Name of an encoding and the bytes of a row of `columns` values."""
        try:
            kind = GGMLQuantizationType(number)
        except ValueError as error:
            raise UnsupportedModelError(
                f"{self._path}: tensor {name} has the unknown encoding {number}: use a file in Q4_K_M or Q8_0"
            ) from error
        block, size = GGML_QUANT_SIZES[kind]
        if not 0 < columns <= self._end * block or columns % block:
            raise self._broken(f"gives tensor {name} rows of {columns} values, not whole blocks of {block}")
        return kind.name, columns // block * size

    def _value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._string(key)
        if kind == _ARRAY:
            return self._array(key)
        if kind not in _SCALARS:
            raise self._broken(f"gives {key[:80]!r} the unknown type {kind}")
        layout = "<" + _SCALARS[kind]
        return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]

    def _array(self, key: str) -> Strings | NDArray[Any]:
        kind, count = self._u32(), self._u64()
        if kind == _STRING:
            if count * 8 > self._end - self._at:
                raise self._broken(f"announces {count} strings in {key[:80]!r}, more than the file can hold")
            start = self._at
            self._skip_strings(count, key)
            return Strings(self._buffer, start, count, f"{self._path}: {key}")
        if kind not in _SCALARS:
            raise self._broken(f"gives the array {key[:80]!r} the unknown element type {kind}")
        layout = np.dtype("<" + _SCALARS[kind])
        return np.frombuffer(self._take(count * layout.itemsize), dtype=layout)

    def _skip_strings(self, count: int, key: str) -> None:
        at, end, buffer, unpack = self._at, self._end, self._buffer, _U64.unpack_from
        try:
            for _ in range(count):
                at += 8 + unpack(buffer, at)[0]
                if at > end:
                    raise self._broken(f"ends inside {key[:80]!r}")
        except struct.error as error:
            raise self._broken(f"ends inside {key[:80]!r}") from error
        self._at = at

    def _string(self, what: str) -> str:
        size = self._u64()
        if what.startswith("a ") and size > LONGEST_NAME:
            raise self._broken(f"has {what} of {size} bytes")
        try:
            return self._take(size).decode()
        except UnicodeDecodeError as error:
            raise self._broken(f"holds {what[:80]} that is not UTF-8") from error

    def _u32(self) -> int:
        return int(_U32.unpack(self._take(4))[0])

    def _u64(self) -> int:
        return int(_U64.unpack(self._take(8))[0])

    def _take(self, size: int) -> bytes:
        if size > self._end - self._at:
            raise self._broken(f"ends in the middle of its header, at byte {self._end}")
        self._at += size
        return self._buffer[self._at - size : self._at]

    def _broken(self, what: str) -> ModelFileError:
        return ModelFileError(f"{self._path}: {what}: the file is damaged, download it again")


def _shape(sizes: list[int]) -> tuple[int, ...]:
    """ggml's sizes, fastest first, as (n,) or (rows, columns)."""
    if len(sizes) == 1:
        return (sizes[0],)
    rows = 1
    for size in sizes[1:]:
        rows *= size
    return (rows, sizes[0])
