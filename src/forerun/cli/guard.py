"""Runs the command line and turns whatever goes wrong into one line on stderr and an exit status (see `status`)."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

from forerun.cli.output import close_quietly, complain
from forerun.cli.status import BUG, FAILED, INTERRUPTED, PIPE_CLOSED, WRONG
from forerun.errors import ForerunError


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's) and return its exit status."""
    status = _guarded(arguments)
    try:
        sys.stdout.flush()
    except OSError as error:
        close_quietly(sys.stdout)
        if status == 0:
            status = _of_os_error(error)
    return status


def _guarded(arguments: Sequence[str] | None) -> int:
    try:
        from forerun.cli.app import app

        # Without standalone mode the return value is what the command returned, or the code of a typer.Exit.
        result = app(arguments, prog_name="forerun", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except ForerunError as error:
        _debug()
        complain(str(error))
        return error.exit_status
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as error:
        # Outside standalone mode typer exits by itself after completions for a shell, and for a closed pipe, with 1.
        if error.code in (None, 0):
            return 0
        close_quietly(sys.stdout)
        return PIPE_CLOSED
    except OSError as error:
        return _of_os_error(error)
    except MemoryError:
        _debug()
        complain("out of memory; use a smaller model, or close other programs.")
        return FAILED
    except Exception as error:
        if (usage := _usage(error)) is not None:
            complain(usage)
            return WRONG
        _debug()
        what = " ".join(f"{type(error).__name__}: {error}".split())
        complain(f"this is a bug in forerun ({what}); FORERUN_DEBUG=1 shows where, please report it.")
        return BUG


def _usage(error: Exception) -> str | None:
    """What the command-line parser has to say, in one line; None for an error that is not the parser's."""
    describe = getattr(error, "format_message", None)
    if describe is None:
        return None
    context = getattr(error, "ctx", None)
    command = "forerun" if context is None else context.command_path
    said = " ".join(str(describe()).split()).rstrip(".")
    return f"{said[:1].lower()}{said[1:]}; see {command} --help."


def _of_os_error(error: OSError) -> int:
    if error.errno == errno.EPIPE:
        close_quietly(sys.stdout)
        return PIPE_CLOSED
    _debug()
    where = f"{error.filename}: " if error.filename else ""
    complain(f"{where}{(error.strerror or str(error)).lower()}.")
    return FAILED


def _debug() -> None:
    """With FORERUN_DEBUG=1, let the current exception through as it is."""
    if os.environ.get("FORERUN_DEBUG", "0") not in ("", "0"):
        raise
