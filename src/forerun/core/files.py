"""Files that forerun keeps for itself: written whole or not at all, one writer at a time, never in the way.

What a user names is never renamed or moved. A damaged file of the cache is set aside under a name of its own.
"""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from platformdirs import user_cache_path

from forerun.errors import ForerunError, ModelFileError

_log = logging.getLogger("forerun")
# Seconds. Writing takes milliseconds, so a lock held longer than this belongs to a process that hangs.
_LONGEST_WAIT = 60.0
_ZIP = b"PK\x03\x04"  # what numpy's archives are


class DamagedError(Exception):
    """A file is not what forerun writes under its name."""


def default_home() -> Path:
    """The folder of everything that forerun keeps: `FORERUN_HOME`, else `forerun` in the platform's folder for caches."""
    if told := os.environ.get("FORERUN_HOME"):
        return Path(told).expanduser()
    return user_cache_path("forerun", appauthor=False)


def refuse_pointer(path: Path, start: bytes) -> None:
    """Raise ModelFileError where a file that starts like this only stands for the real one, which Git LFS has."""
    if start.startswith(b"version https://git-lfs.github.com/spec/"):
        raise ModelFileError(f"{path}: is a Git LFS pointer, not the file itself: run `git lfs pull` in its repository")


def within(path: Path, folder: Path) -> bool:
    """Whether a file lies below a folder, with symbolic links in the way to it followed."""
    return path.parent.resolve().is_relative_to(folder.resolve())


@contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes its name only when it is complete. Raises OSError; nothing unfinished is left behind."""
    path = path.resolve()  # a symbolic link stays one
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
        with suppress(FileNotFoundError):
            shutil.copymode(path, partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Only one process at a time is in here for `path`. Raises OSError.

    The lock is an empty hidden file beside it, which stays: if it were removed, a process that waits for it and one that comes
    later could both be let in.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock"), timeout=_LONGEST_WAIT):
        yield


def keep(path: Path, save: Callable[[Path], None]) -> None:
    """Save what was learned, if it can be: what goes wrong now must not end a run that went well."""
    try:
        save(path)
    except (OSError, ForerunError) as error:
        _log.warning("%s could not be written (%s); what was learned is lost with this run.", path, error)


def set_aside(path: Path, error: Exception) -> None:
    """Give a damaged file of forerun's cache a name that no other file has, so that it stops nothing, and say so.

    A file elsewhere is somebody's own, and stays as it is.
    """
    where = "left where it is"
    if within(path, default_home()):
        with suppress(OSError):
            number, name = tempfile.mkstemp(".damaged", f"{path.name}.", path.parent)
            os.close(number)
            try:
                path.replace(name)
                where = f"set aside as {Path(name).name}"
            except OSError:
                Path(name).unlink()
    _log.warning("%s is damaged (%s); it is %s and rebuilt from now on.", path, error, where)


def write_arrays(path: Path, head: Mapping[str, Any], **arrays: Any) -> None:
    """Write arrays and a head of plain values to a file. Raises OSError."""
    with writing(path) as file:
        np.savez_compressed(file, head=np.frombuffer(json.dumps(head).encode(), dtype=np.uint8), **arrays)


def read_arrays(path: Path, *names: str) -> tuple[dict[str, Any], list[NDArray[Any]]]:
    """The head and these arrays of what `write_arrays` wrote. Raises OSError, and DamagedError for any other file."""
    with path.open("rb") as file:
        magic = file.read(len(_ZIP))
        whole = magic + file.read() if magic == _ZIP else b""
    try:
        with np.load(io.BytesIO(whole), allow_pickle=False) as held:
            head, arrays = json.loads(held["head"].tobytes().decode()), [held[name] for name in names]
    except Exception as error:  # of numpy, zipfile, zlib and json, each with kinds of its own
        raise DamagedError("it is not what forerun writes, or not all of it") from error
    if not isinstance(head, dict):
        raise DamagedError("its head is not an object")
    return head, arrays
