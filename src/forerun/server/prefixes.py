"""Keeping prefixes over a restart: what the engine has read of earlier texts, in a file.

A key saves and loads what is its own, in a folder of its own. The file says which model it is of, since keys and values of
another one, or stored in another way, would mean nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from forerun.core.files import default_home, writing
from forerun.core.model import Storage, StoredKV
from forerun.errors import BackendError
from forerun.server.errors import ApiError

if TYPE_CHECKING:
    from forerun.llm import LLM

_FORMAT = 1
# Files that one memory may have; clients name them, and each may be large.
_MOST_FILES = 16


@dataclass(frozen=True)
class Prefix:
    """A text that was read: its tokens, and its keys and values as bytes."""

    tokens: tuple[int, ...]
    stored: NDArray[np.uint8]


def file_of(name: str, memory: str) -> Path:
    """Where prefixes of a memory are kept under a name."""
    folder = hashlib.sha256(memory.encode()).hexdigest()[:16] if memory else "shared"
    return default_home() / "prefixes" / folder / f"{name}.npz"


def save(llm: LLM, path: Path, memory: str) -> dict[str, Any]:
    """Write what is kept for a memory. Raises ApiError where this model's cannot be kept, or the disk refuses."""
    _check(llm)
    _check_kind(path, "not_a_file")
    if not path.exists() and path.parent.is_dir() and sum(1 for _ in path.parent.glob("*.npz")) >= _MOST_FILES:
        raise ApiError(
            409, f"there are {_MOST_FILES} files of prefixes already; save over one of them.", code="too_many"
        )

    def store() -> list[Prefix]:
        kept = llm.assembly.engine.prefixes.entries()
        return [Prefix(one.tokens, cast(StoredKV, one.kv).store()) for one in kept if one.memory == memory]

    prefixes = llm.worker.call(store)
    head = {"format": _FORMAT, "model": llm.assembly.fingerprint, "name": llm.assembly.model}
    arrays: dict[str, NDArray[Any]] = {"head": np.frombuffer(json.dumps(head).encode(), dtype=np.uint8)}
    for number, prefix in enumerate(prefixes):
        arrays[f"tokens{number}"] = np.array(prefix.tokens, dtype=np.int32)
        arrays[f"stored{number}"] = prefix.stored
    try:
        with writing(path) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        size = path.stat().st_size
    except OSError as error:
        raise ApiError(507, f"the prefixes cannot be written ({error.strerror}); free some space.") from error
    return _told(prefixes, size)


def load(llm: LLM, path: Path, memory: str) -> dict[str, Any]:
    """Keep what a file holds. Raises ApiError where there is no such file, or it is damaged or of another model."""
    _check(llm)
    prefixes = _read(path, llm)
    target, kept = llm.assembly.engine.target, llm.assembly.engine.prefixes

    def restore() -> list[Prefix]:
        restored = []
        for prefix in prefixes:
            try:
                kv = cast(Storage, target).restore(prefix.stored, len(prefix.tokens))
            except BackendError:
                continue  # no room for this one
            kept.put(prefix.tokens, kv, memory)
            restored.append(prefix)
        return restored

    restored = llm.worker.call(restore)
    if prefixes and not restored:
        raise ApiError(507, "there is no room for what the file holds; give more memory (--kv-memory).")
    return _told(restored, path.stat().st_size)


def _check(llm: LLM) -> None:
    engine = llm.assembly.engine
    if not isinstance(engine.target, Storage):
        raise ApiError(501, f"the {llm.assembly.backend} backend cannot keep keys and values outside of its process.")
    if not engine.prefixes.keeps:
        raise ApiError(501, "this server keeps no prefixes; start it with --keep-prefixes.")


def _check_kind(path: Path, code: str) -> None:
    if path.exists() and not path.is_file():
        raise ApiError(409, f"{path.stem} is no regular file; give another name.", code=code)


def _read(path: Path, llm: LLM) -> list[Prefix]:
    _check_kind(path, "damaged")  # a pipe would keep whoever opens it for ever
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            head = json.loads(file["head"].tobytes().decode())
            if head["format"] != _FORMAT:
                raise ValueError("another version wrote it")
            if head["model"] != llm.assembly.fingerprint:
                raise ApiError(
                    409,
                    f"{path.stem} holds prefixes of another model ({head['name']}), or of one that stores them in "
                    "another way; save them anew.",
                    code="other_model",
                )
            return [_prefix(file[f"tokens{i}"], file[f"stored{i}"], llm) for i in range(len(file.files) // 2)]
    except FileNotFoundError:
        raise ApiError(404, f"there are no prefixes under the name {path.stem!r}; save some first.") from None
    except ApiError:
        raise
    except Exception as error:  # zip, zlib, numpy and JSON each have their own for bytes that are not theirs
        why = str(error) or type(error).__name__
        raise ApiError(409, f"{path.stem} is damaged ({why}); save anew.", code="damaged") from error


def _prefix(tokens: NDArray[Any], stored: NDArray[Any], llm: LLM) -> Prefix:
    """Raises ValueError for what `save` does not write."""
    if tokens.dtype != np.int32 or stored.dtype != np.uint8 or tokens.ndim != 1 or stored.ndim != 1:
        raise ValueError("its types are wrong")
    if tokens.min(initial=0) < 0 or tokens.max(initial=0) >= llm.assembly.engine.target.info.usable_vocab:
        raise ValueError("its tokens are out of range")
    return Prefix(tuple(tokens.tolist()), stored)


def _told(prefixes: Sequence[Prefix], size: int) -> dict[str, Any]:
    return {"prefixes": len(prefixes), "tokens": sum(len(one.tokens) for one in prefixes), "bytes": size}
