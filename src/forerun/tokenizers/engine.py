"""The one place where the tokenizers library takes texts and files apart: what it throws becomes an error of ours.

The library panics where it meets what it did not expect (a regular expression that gives up, a merge through the middle of
a character), and a panic is no Exception in Python. Of a tokenizer that is plain (tokenizers.plain) the text is taken
apart here; any other runs in a process of its own, where it may take what time and memory it likes up to a bound.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import tokenizers

from forerun.confined.worker import ExceededError, Limits, Worker
from forerun.errors import ForerunError, ModelFileError, PromptError

_MB = 1 << 20


class Engine(Protocol):
    """Takes texts apart. Safe to share between threads."""

    def encode(self, text: str, special: bool) -> list[int]:
        """Ids, with the strings of control tokens as these or as text. Raises PromptError or ModelFileError."""
        ...

    def name(self, token: int) -> str:
        """The string of an id, also of one that the model has no row for."""
        ...


class LocalEngine:
    """In this process."""

    def __init__(self, engine: tokenizers.Tokenizer) -> None:
        engine.no_truncation()
        engine.no_padding()
        # BOS is put in front elsewhere, and what else these do may repeat the text.
        engine.post_processor = None
        self._engine = engine
        self._lock = threading.Lock()

    def encode(self, text: str, special: bool) -> list[int]:
        with self._lock, translated(_unreadable):
            self._engine.encode_special_tokens = not special
            return self._engine.encode(text, add_special_tokens=False).ids

    def name(self, token: int) -> str:
        return str(self._engine.id_to_token(token))


class ConfinedEngine:
    """In a process of its own, which loads the whole of the file. vocabulary: the file without what runs over texts.

    Raises ModelFileError for a file that cannot be loaded, or takes more than ten times as long as others of its size.
    """

    def __init__(self, path: Path, vocabulary: tokenizers.Tokenizer) -> None:
        size = path.stat().st_size
        limits = Limits(seconds=5 + size / 2_000_000, memory=256 * _MB + 24 * size, answer=_MB)
        self._worker = Worker("forerun.tokenizers.encode_worker", str(path.resolve()), limits)
        self._path = path
        self._vocabulary = vocabulary
        try:
            self._worker.opened()
        except ExceededError as error:
            raise ModelFileError(f"{path}: loading it {error}: use another model") from error

    def encode(self, text: str, special: bool) -> list[int]:
        try:
            ids: list[int] = self._worker.ask([text, special])
        except ExceededError as error:
            raise ModelFileError(f"{self._path}: taking this text apart {error}: use another model") from error
        return ids

    def name(self, token: int) -> str:
        return str(self._vocabulary.id_to_token(token))


def load(path: Path, described: str) -> tokenizers.Tokenizer:
    """What the contents of a tokenizer.json describe. Raises ModelFileError."""
    with translated(partial(damaged, path)):
        engine = tokenizers.Tokenizer.from_str(described)
    engine.no_truncation()
    engine.no_padding()
    return engine


@contextmanager
def translated(failure: Callable[[str], ForerunError]) -> Iterator[None]:
    """Turns what the library throws, its panics too, into the error that `failure` makes of its message."""
    try:
        yield
    except ForerunError:
        raise
    except Exception as error:  # the library raises bare Exceptions
        raise failure(str(error)) from error
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise failure(str(error)) from error


def damaged(path: Path, what: str) -> ModelFileError:
    """The error for a file that the library cannot read."""
    return ModelFileError(f"{path}: cannot be read ({what}): the file is damaged, download it again")


def _unreadable(what: str) -> PromptError:
    return PromptError(
        f"the model's tokenizer cannot take this text apart ({what}): shorten what is repeated in it many times, or use "
        "another model"
    )
