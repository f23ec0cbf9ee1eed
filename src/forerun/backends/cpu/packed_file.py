"""The cache of repacked weights: one file for each model file and way of packing, mapped into memory at the next start.

    8 bytes magic · 8 bytes length of the index · 8 bytes its checksum · the index (JSON) · matrices, each at a multiple of 4096

A file is written beside its place and renamed when it is whole. Every matrix has a checksum, compared when the file is
opened; what does not fit is removed and built again. The index also says which files, in which state, the matrices were
made from, so that they can go when those are gone (models.storage).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import mmap
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from forerun.backends.cpu import _core
from forerun.core.files import default_home, writing
from forerun.models.storage import LARGEST_INDEX, PACKED_HEAD, PACKED_MAGIC, files_as_stated, make_room
from forerun.weights import files_of
from forerun.weights.tensors import Bytes

_log = logging.getLogger("forerun")

# Raise it whenever the packed form changes.
FORM = 2
ALIGNMENT = 4096

_IDENTITY = 1 << 20

Writer = Callable[[Bytes], None]


class PackedFileError(Exception):
    """A cache file that is not what it should be."""


def file_for(source: Path, variant: str | None, home: Path | None = None) -> Path:
    """Where the packed form of a model belongs: its name says which file in which state it was made from."""
    place = hashlib.sha256(f"{source.resolve()}\0{variant}".encode()).hexdigest()[:12]
    state = hashlib.sha256(f"{FORM}\0".encode())
    for file in _files(source):
        status = file.stat()
        state.update(f"{file.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
        with file.open("rb") as stream:
            state.update(stream.read(_IDENTITY))
    return (home or default_home()) / "packed" / f"{source.resolve().stem}-{place}-{state.hexdigest()[:16]}.packed"


def _files(source: Path) -> list[Path]:
    # The hub's package keeps files under other names, to which links lead.
    return [file.resolve() for file in files_of(source)]


@dataclass(frozen=True, eq=False)
class PackedFile:
    """A mapped cache file. `index`: offset, bytes and checksum of each matrix."""

    data: Bytes
    index: Mapping[str, tuple[int, int, int]]

    def blob(self, name: str) -> Bytes:
        """The bytes of a matrix. Raises PackedFileError where there is none of the name."""
        if name not in self.index:
            raise PackedFileError(f"no matrix {name} in the file")
        offset, size, _ = self.index[name]
        return self.data[offset : offset + size]

    @classmethod
    def open(cls, path: Path) -> PackedFile | None:
        """The file if it is there and whole. A damaged one is removed and counts as absent. Raises OSError."""
        if not path.exists():
            return None
        try:
            packed = _mapped(path)
            packed.verify()
        except PackedFileError as error:
            _log.warning("%s is damaged (%s); it is made again.", path, error)
            path.unlink(missing_ok=True)
            return None
        # What is not used for long is the first to go when room is needed; a cache that cannot be written works too.
        with contextlib.suppress(OSError):
            os.utime(path)
        return packed

    @classmethod
    def build(cls, path: Path, source: Path, matrices: Mapping[str, tuple[int, Writer]]) -> PackedFile:
        """Write the file, one matrix in memory at a time, and map it. Raises OSError, leaving nothing behind."""
        _sweep(path)
        make_room(sum(_round_up(size) for size, _ in matrices.values()), path.parent.parent)
        files = files_as_stated(_files(source))
        with writing(path) as out:
            _write(out.write, out.seek, files, matrices)
        return _mapped(path)

    def verify(self) -> None:
        """Compare all checksums. Raises PackedFileError."""

        def damaged(name: str) -> bool:
            return _core.checksum(self.blob(name)) != self.index[name][2]

        # Two threads are enough for the speed of memory; the core lets go of the interpreter meanwhile.
        with ThreadPoolExecutor(2) as threads:
            if any(threads.map(damaged, self.index)):
                raise PackedFileError("a checksum does not fit")


def _write(
    write: Callable[[bytes | memoryview], int],
    seek: Callable[[int], int],
    files: list[list[Any]],
    matrices: Mapping[str, tuple[int, Writer]],
) -> None:
    # The index has the same length with and without checksums, so it can be written last.
    offset, index = 0, {}
    for name, (size, _) in matrices.items():
        index[name] = [offset, size, 0]
        offset += _round_up(size)
    start = _round_up(PACKED_HEAD.size + len(_encoded(files, index)))
    seek(start)
    for name, (size, fill) in matrices.items():
        padded = _aligned(_round_up(size))
        fill(padded[:size])
        index[name] = [start + index[name][0], size, _core.checksum(padded[:size])]
        write(padded.data)
    encoded = _encoded(files, index)
    seek(0)
    write(PACKED_HEAD.pack(PACKED_MAGIC, len(encoded), _core.checksum(np.frombuffer(encoded, np.uint8))) + encoded)


def _encoded(files: list[list[Any]], index: Mapping[str, list[int]]) -> bytes:
    matrices = {name: [f"{number:016x}" for number in entry] for name, entry in index.items()}
    return json.dumps({"files": files, "matrices": matrices}).encode()


def _mapped(path: Path) -> PackedFile:
    with path.open("rb") as file:
        try:
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise PackedFileError("the file is empty") from error
    data = np.frombuffer(buffer, np.uint8)
    if len(data) < PACKED_HEAD.size:
        raise PackedFileError("the file is cut short")
    magic, length, checksum = PACKED_HEAD.unpack(data[: PACKED_HEAD.size].tobytes())
    end = PACKED_HEAD.size + length
    if (
        magic != PACKED_MAGIC
        or length > LARGEST_INDEX
        or end > len(data)
        or _core.checksum(data[PACKED_HEAD.size : end]) != checksum
    ):
        raise PackedFileError("the index is damaged")
    entries = json.loads(data[PACKED_HEAD.size : end].tobytes())["matrices"]
    index: dict[str, tuple[int, int, int]] = {}
    for name, entry in entries.items():
        offset, size, sum_ = (int(number, 16) for number in entry)
        if offset % ALIGNMENT or offset + size > len(data):
            raise PackedFileError("the file is cut short")
        index[name] = (offset, size, sum_)
    return PackedFile(data, index)


def _aligned(size: int) -> Bytes:
    """Zeroed bytes that start at a multiple of 64."""
    block = np.zeros(size + 64, np.uint8)
    skip = -block.ctypes.data % 64
    return block[skip : skip + size]


def _round_up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _sweep(path: Path) -> None:
    """Remove what older states of the same model and way of packing left."""
    place = path.name.rpartition("-")[0]
    for other in path.parent.glob(f"{place}-*.packed"):
        with contextlib.suppress(OSError):
            other.unlink()
