"""Files that a user names: what goes wrong while one is read is one clear error."""

from __future__ import annotations

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
