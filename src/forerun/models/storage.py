"""What forerun keeps in its folder, what of it serves nothing any more, and how it is cleared up.

    models/     what was pulled                        removed by name only
    partial/    what interrupted pulls left            removed by `prune`
    packed/     repacked weights, made again when missing: those used longest ago go beyond PACKED_LIMIT, and those of
                models that are gone or have changed
    profiles/   what passes cost here, made again      the same
    heads/      the frequent tokens of a vocabulary, made again
    memory/     what was learned from earlier runs     never removed here
    FILE.partial, FILE.damaged in any of these: what interrupted writers left, and what could not be read

Files with other names are not ours, and neither listed nor touched; nor is anything outside the folder, wherever links lead.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from forerun.core.files import default_home, within
from forerun.models.cache import Cache, size_of
from forerun.models.catalogue import CATALOGUE

# Bytes of repacked weights that are kept; what was used within the hour is kept beyond them too.
PACKED_LIMIT = 10_000_000_000
PACKED_MAGIC = b"FRPACKED"
# Magic, length of the index, its checksum; then the index, as JSON.
PACKED_HEAD = struct.Struct("<8sQQ")
LARGEST_INDEX = 1 << 26

# A file that is being written changes all the time.
_STALE_SECONDS = 600
_IN_USE_SECONDS = 3600
_OURS = {
    "packed": re.compile(r".+-[0-9a-f]{12}-[0-9a-f]{16}\.packed"),
    "profiles": re.compile(r"[0-9a-f]{20}\.json"),
    "heads": re.compile(r"[0-9a-f]{16}\.npy"),
    "memory": re.compile(r".+\.(history|matrix)\.npz"),
}
_UNFINISHED = re.compile(r".+\.\d+(\.\d+)?\.partial")
_REMADE = ("packed", "profiles", "heads")


@dataclass(frozen=True)
class Kept:
    """Something in the folder. size: in bytes. used: when last, in seconds since 1970.

    state: `orphan` where the model it belongs to is gone or has changed, `partial`, `damaged`, or empty.
    """

    kind: str
    path: Path
    size: int
    used: float
    state: str = ""


def contents(home: Path | None = None) -> list[Kept]:
    """Everything that forerun keeps, by kind, the largest first."""
    home = home or default_home()
    found = [*_models(home), *(kept for kind in _OURS for kept in _of_kind(home, kind))]
    kinds = ["models", "partial", *_OURS]
    return sorted(found, key=lambda kept: (kinds.index(kept.kind), -kept.size, kept.path.name))


def prune(home: Path | None = None, everything: bool = False) -> list[Kept]:
    """Remove what serves nothing, and with `everything` all that is made again when it is needed; what was removed.

    A pull or a write that goes on meanwhile is let be.
    """
    home = home or default_home()
    kept = contents(home)
    useless = [each for each in kept if each.state or (everything and each.kind in _REMADE)]
    return _remove(home, [*useless, *_beyond(each for each in kept if each not in useless)])


def make_room(needed: int, home: Path) -> list[Kept]:
    """Before repacked weights of so many bytes are written: remove what serves nothing or goes beyond the limit.

    What is damaged, and what interrupted pulls left, may still be wanted, and stays until `prune`.
    """
    kept = contents(home)
    useless = [each for each in kept if each.state in ("orphan", "partial") and each.kind != "partial"]
    return _remove(home, [*useless, *_beyond((each for each in kept if each not in useless), needed)])


def remove_orphans(home: Path | None = None) -> list[Kept]:
    """Remove what belongs to models that are gone."""
    home = home or default_home()
    return _remove(home, [each for each in contents(home) if each.state == "orphan"])


def files_as_stated(files: Iterable[Path]) -> list[list[Any]]:
    """Files in the state that they are in now, to be compared later. Raises OSError."""
    return [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def _models(home: Path) -> Iterator[Kept]:
    cache = Cache(home)
    for entry in CATALOGUE:
        with contextlib.suppress(OSError):
            if cache.path(entry).is_file():
                yield _kept("models", cache.path(entry))
            for leftover in cache.leftovers(entry):
                yield _kept("partial", leftover, "partial")


def _of_kind(home: Path, kind: str) -> Iterator[Kept]:
    with contextlib.suppress(OSError):
        for path in sorted((home / kind).iterdir()):
            with contextlib.suppress(OSError):
                if _OURS[kind].fullmatch(path.name):
                    yield _kept(kind, path, "orphan" if _ORPHANED.get(kind, _never)(path) else "")
                elif _UNFINISHED.fullmatch(path.name):
                    yield _kept(kind, path, "partial")
                elif path.name.endswith(".damaged"):
                    yield _kept(kind, path, "damaged")


def _kept(kind: str, path: Path, state: str = "") -> Kept:
    return Kept(kind, path, size_of(path), path.stat().st_mtime, state)


def _never(_path: Path) -> bool:
    return False


def _packed_without_model(path: Path) -> bool:
    """Whether the model that a packed file was made from is gone or has changed, or nobody can tell."""
    with path.open("rb") as file:
        head = file.read(PACKED_HEAD.size)
        if len(head) < PACKED_HEAD.size or not head.startswith(PACKED_MAGIC):
            return True
        index = file.read(min(PACKED_HEAD.unpack(head)[1], LARGEST_INDEX))
    try:
        return _changed(json.loads(index)["files"])
    except (ValueError, KeyError, TypeError):
        return True


def _profile_without_model(path: Path) -> bool:
    try:
        told = json.loads(path.read_bytes())["of"]
        return _changed([[told[1], int(told[2]), int(told[3])]])
    except (ValueError, KeyError, TypeError, IndexError):
        return True


def _changed(files: list[list[Any]]) -> bool:
    try:
        return files_as_stated(Path(name) for name, _, _ in files) != files
    except OSError:
        return True


_ORPHANED: dict[str, Callable[[Path], bool]] = {
    "packed": _packed_without_model,
    "profiles": _profile_without_model,
}


def _beyond(kept: Iterable[Kept], needed: int = 0) -> list[Kept]:
    """The packed files that go beyond the limit, from the one that was used last on."""
    packed = sorted((each for each in kept if each.kind == "packed"), key=lambda each: -each.used)
    total, beyond, now = needed, [], time.time()
    for each in packed:
        total += each.size
        if total > PACKED_LIMIT and each.used < now - _IN_USE_SECONDS:
            beyond.append(each)
    return beyond


def _remove(home: Path, useless: Iterable[Kept]) -> list[Kept]:
    """Remove what can be removed; what was removed."""
    gone = []
    for each in useless:
        unfinished = each.kind != "partial" and each.state == "partial"
        if not within(each.path, home) or (unfinished and time.time() - each.used < _STALE_SECONDS):
            continue
        # Timeout, of a lock that a pull holds, is an OSError too.
        with contextlib.suppress(OSError), _no_pull(home, each):
            if each.path.is_dir() and not each.path.is_symlink():
                shutil.rmtree(each.path)
            else:
                each.path.unlink()
            gone.append(each)
    return gone


def _no_pull(home: Path, kept: Kept) -> contextlib.AbstractContextManager[object]:
    """Holds the lock of the model that something is left of a pull of."""
    if kept.kind != "partial":
        return contextlib.nullcontext()
    entry = next(entry for entry in CATALOGUE if kept.path.name.startswith(f"{entry.file}."))
    return FileLock(Cache(home).lock_path(entry), blocking=False)
