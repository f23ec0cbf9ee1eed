"""Every error forerun raises on purpose.

    ForerunError
    ├── UsageError            the request itself is wrong: a flag, a value, a malformed line       (exit status 2)
    │   ├── SamplingError     a sampling parameter outside its range
    │   ├── PromptError       empty, or longer than the context
    │   └── CompositionError  parts that cannot work together (draft with another vocabulary, ...)
    ├── ModelError            a model cannot be used                                               (exit status 1)
    │   ├── UnknownModelError     neither in the catalogue, nor a file, nor a folder
    │   ├── ModelFileError        missing, truncated, damaged or tampered file
    │   └── UnsupportedModelError an architecture or tensor type this backend does not run
    ├── FetchError            a download failed; what arrived is kept and the next pull resumes
    └── BackendError          a forward pass failed (not-a-number logits, out of memory)

Each message says what happened, why, and what to do, in one line. Much of what messages quote comes from files that are
not trusted (names, metadata, what a chat template says), so an error shows control characters instead of passing them on.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, Final

# Characters of a message at most; what is cut is in the middle, since advice stands at the end.
LONGEST: Final = 2000


# The most characters of a value that a message quotes.
_QUOTED: Final = 80


def quoted(value: Any) -> str:
    """A value as a message quotes it: its `repr`, cut where that is long, its type where there is none (huge integers)."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= _QUOTED else f"{text[: _QUOTED - 3]}..."


def unknown(what: str, given: str, known: Iterable[str], shown: Iterable[str] | None = None) -> UsageError:
    """The error for a name that is none of `known`: it lists them (as `shown`, if given) and asks whether one was meant."""
    return UsageError(
        f"unknown {what} {quoted(given)}; known: {', '.join(known if shown is None else shown)}.{meant(given, known)}"
    )


def meant(given: str, known: Iterable[str]) -> str:
    """` Did you mean ...?` where one of `known` is like the name that was given, whatever its case; else nothing."""
    by_case = {name.casefold(): name for name in known}
    near = difflib.get_close_matches(given.casefold(), list(by_case), 1)
    return f" Did you mean {by_case[near[0]]}?" if near else ""


def one_line(text: str) -> str:
    """`text` as a line that a terminal can only show: control characters, marks that reverse the direction of text and
    halves of surrogate pairs are written as escapes, line ends as spaces, and the middle of a very long text is left out.
    """
    line = " ".join(part.strip() for part in text.replace("\t", " ").splitlines())
    if not line.isprintable():
        line = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)
    return line if len(line) <= LONGEST else f"{line[: LONGEST * 2 // 3]} ... {line[-LONGEST // 3 :]}"


class ForerunError(Exception):
    """Base of all errors forerun raises on purpose; `exit_status` is what the command line returns."""

    exit_status = 1

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class UsageError(ForerunError):
    """The request is wrong; nothing was run."""

    exit_status = 2


class SamplingError(UsageError):
    """A sampling parameter is outside its range."""


class PromptError(UsageError):
    """The prompt cannot be used: empty, or longer than the context."""


class CompositionError(UsageError):
    """The chosen parts cannot work together."""


class ModelError(ForerunError):
    """A model cannot be used."""


class UnknownModelError(ModelError):
    """The name is neither in the catalogue, nor a file, nor a folder."""

    exit_status = 2


class ModelFileError(ModelError):
    """A model file is missing, truncated, damaged or not what it should be."""


class UnsupportedModelError(ModelError):
    """The architecture or a tensor type is not run by this backend."""


class FetchError(ForerunError):
    """A download failed. What arrived is kept; the next pull resumes."""


class BackendError(ForerunError):
    """A forward pass failed."""
