"""Files that a user names: what goes wrong while one is read is one clear error, and no output replaces an input."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forerun.cli.output import reason
from forerun.errors import UsageError


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise UsageError, naming `path`, for what cannot be read or is not text."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot read {path}: {reason(error)}; check the path.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start}); convert it first.") from error


def apart(output: Path | None, *others: Path | str | None) -> None:
    """Refuse to write over a file that is also read or written as one of `others`, and over any model. Raises UsageError.

    A folder stands for the files in it, and a string for the name of a model, which may be that of a file.
    """
    if output is None:
        return
    for other in others:
        path = Path(other or os.devnull)
        files = list(path.iterdir()) if path.is_dir() else [path] if isinstance(other, Path) or path.is_file() else []
        if any(_same(output, file) for file in files):
            raise UsageError(
                f"{output} is named twice, and would be written over; choose another file for what is written."
            )
    if _starts_with(output, b"GGUF"):
        raise UsageError(f"{output} is a model, which would be written over; choose another file.")


def _same(output: Path, other: Path) -> bool:
    if output.exists() and other.exists():
        return output.is_file() and output.samefile(other)  # terminals and pipes may well be both
    return output.resolve() == other.resolve()


def _starts_with(path: Path, magic: bytes) -> bool:
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError:  # one that cannot be read can still be written
        return False
