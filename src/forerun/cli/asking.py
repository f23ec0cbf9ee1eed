"""What `forerun generate` is asked: the argument, files, and what comes in on standard input."""

from __future__ import annotations

import io
import os
import select
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from forerun.cli.files import reading
from forerun.cli.output import note
from forerun.errors import PromptError, UsageError

# Seconds without a byte after which a pipe is named as what is waited for.
_PATIENCE = 1.0


def prompt_of(argument: str | None, files: Sequence[Path], raw: bool, quiet: bool = False) -> str:
    """The prompt: the argument, then the files, then standard input where that is a pipe or a file, by blank lines apart.

    argument: `-` is standard input, wherever it comes from; so is a file of that name. raw: keep the line end that closes a
    file or standard input, and take text that is blank. quiet: do not say what is waited for.
    Raises UsageError where nothing was given, PromptError for blank text and for bytes that are not UTF-8.
    """
    dash = Path("-")
    sources = [dash if argument == "-" else argument, *files]
    parts = []
    for source in sources:
        if isinstance(source, str):
            parts.append(source)
        elif source is not None:
            parts.append(_closed(_standard_input() if source == dash else _file(source), raw))
    if dash not in sources and _is_given():
        if not quiet:
            _say_if_silent()
        if text := _closed(_standard_input(), raw):
            parts.append(text)
    if not parts:
        raise UsageError(
            "there is no prompt; give one, - to read it from standard input, --file FILE or --prompts FILE."
        )
    prompt = "\n\n".join(parts)
    if not raw and not prompt.strip():
        raise PromptError("the prompt is empty; give some text.")
    return prompt


def _closed(text: str, raw: bool) -> str:
    """Without the line end that closes a text file."""
    return text if raw else text.removesuffix("\n").removesuffix("\r")


def _file(path: Path) -> str:
    with reading(path):
        return path.read_bytes().decode("utf-8-sig")


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PromptError(f"standard input is not UTF-8 text (byte {error.start}); convert it first.") from error


def _is_given() -> bool:
    """Whether somebody sends something: a pipe or a file does. A terminal, /dev/null and a socket that was inherited do not."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except io.UnsupportedOperation:
        return True  # a stream in memory
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _say_if_silent() -> None:
    """A pipe that nobody writes to and nobody closes would be waited for without a word."""
    try:
        ready = select.select([sys.stdin], [], [], _PATIENCE)[0]
    except (OSError, ValueError):
        return
    if not ready:
        note("forerun: waiting for standard input, which is a pipe (< /dev/null leaves it out)")
