"""Files that forerun keeps for itself: written whole or not at all, and set aside when damaged, never in the way."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_log = logging.getLogger("forerun")


@contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes its name only when it is complete. Raises OSError; nothing unfinished is left behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def keep(path: Path, save: Callable[[Path], None]) -> None:
    """Save what was learned, if it can be: a disk that is full or read-only must not end a run that went well."""
    try:
        save(path)
    except OSError as error:
        _log.warning("%s could not be written (%s); what was learned is lost with this run.", path, error)


def set_aside(path: Path, error: Exception) -> None:
    """Rename a damaged file so that it neither stops anything nor is overwritten, and say so."""
    aside = path.with_name(path.name + ".damaged")
    try:
        path.replace(aside)
        where = f"set aside as {aside.name}"
    except OSError:
        where = "left where it is"
    _log.warning("%s is damaged (%s); it is %s and rebuilt from now on.", path, error, where)
