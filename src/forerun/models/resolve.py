"""From what the user calls a model to where it lies: one function, used wherever a model is named."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from forerun.core.files import refuse_pointer
from forerun.errors import FetchError, ModelFileError, UnknownModelError
from forerun.models.cache import Cache, reason
from forerun.models.catalogue import find, lookup, unknown
from forerun.models.hub import HubReference, resolve_hub
from forerun.models.progress import Progress, QuietProgress
from forerun.models.pull import pull as pull_entry
from forerun.models.storage import remove_orphans


def resolve(name_or_path: str | os.PathLike[str], progress: Progress | None = None, pull: bool = True) -> Path:
    """Path of a GGUF file, or of a folder with config.json, that `name_or_path` stands for.

    In this order: a name of the catalogue (fetched on first use when `pull`), a path, a repository of the hub
    (`org/name`, `org/name:FILE.gguf`). Write `./name` for a path that is spelled like a name.

    Raises UnknownModelError, ModelFileError (missing, damaged, tampered, not a model) and FetchError.
    """
    name = os.fspath(name_or_path)
    entry = lookup(name)
    if entry is not None:
        cached = Cache().get(entry, progress)
        if cached is not None:
            return cached
        if not pull:
            raise ModelFileError(f"{entry.name} is not on this machine; run `forerun pull {entry.name}`")
        return pull_entry(entry, progress)
    if not name.strip():
        raise unknown(name)
    path = Path(name).expanduser()
    if os.path.lexists(path):
        return _local(path)
    if _spelled_like_path(name):
        raise ModelFileError(f"no file or folder {name}; check the path")
    reference = HubReference.parse(name)
    if reference is None:
        raise unknown(name)
    try:
        return resolve_hub(reference, pull)
    except (UnknownModelError, FetchError) as error:
        raise type(error)(_as_path(reference.repo) + str(error)) from error


def verify(name: str, progress: Progress | None = None) -> Path:
    """Path of a cached model of the catalogue after reading all of it and comparing its SHA-256.

    Raises UnknownModelError, and ModelFileError when it is not here or not what was pulled.
    """
    entry = find(name)
    path = Cache().get(entry, progress, full=True)
    if path is None:
        raise ModelFileError(f"{entry.name} is not on this machine; run `forerun pull {entry.name}`")
    return path


def remove(name: str, progress: Progress | None = None) -> int:
    """Delete a model of the catalogue, what is left of pulls of it, and what was made from it; returns the bytes freed.

    Raises UnknownModelError and ModelFileError.
    """
    freed = Cache().remove(find(name), progress or QuietProgress())
    return freed + sum(kept.size for kept in remove_orphans())


def _local(path: Path) -> Path:
    """A path that exists, if it can be a model."""
    try:
        if path.is_dir():
            return _folder(path)
        if path.exists() and not path.is_file():
            raise ModelFileError(f"{path} is not a regular file; give a .gguf file or a folder with config.json")
        with open(path, "rb") as file:
            start = file.read(64)
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {reason(error)}; check the file and its permissions") from error
    refuse_pointer(path, start)
    if not start.startswith(b"GGUF"):
        raise ModelFileError(f"{path} is not a GGUF file; give a .gguf file or a folder with config.json")
    return path


def _folder(path: Path) -> Path:
    if (path / "config.json").is_file():
        return path
    ggufs = sorted(child.name for child in path.iterdir() if child.suffix.lower() == ".gguf")
    if ggufs:
        raise ModelFileError(f"{path} is a folder without config.json; name a file in it: {', '.join(ggufs)}")
    raise ModelFileError(f"{path} is a folder without config.json; give a .gguf file or a Hugging Face model folder")


def _as_path(repo: str) -> str:
    """What to say first of a hub id that may be a mistyped path: nothing where its first part is no folder here."""
    folder, _, name = repo.partition("/")
    if not Path(folder).is_dir():
        return ""
    near = difflib.get_close_matches(name, os.listdir(folder), n=1)
    hint = f" (did you mean {folder}/{near[0]}?)" if near else ""
    return f"there is a folder {folder} here, but no {name} in it{hint}; as a repository of the hub: "


def _spelled_like_path(name: str) -> bool:
    parts = name.partition(":")[0].count("/")
    looks = name.startswith(("/", "./", "../", "~", ".\\", "..\\")) or "\\" in name or parts > 1
    return looks or Path(name).is_absolute() or (name.lower().endswith(".gguf") and ":" not in name)
