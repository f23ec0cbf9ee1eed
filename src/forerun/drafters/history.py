"""Texts of earlier requests, to find again in later ones: bounded, in named spaces that never see each other, on disk.

Each space is two generations of suffix automata. New texts go into the young one; when it holds half of the limit it
becomes the old one and what was old is forgotten, so eviction costs nothing and no text is indexed twice. The texts are
what is remembered; an automaton is made of them when it is first looked at, and again when writing it was cut short.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.core.files import DamagedError, locked, read_arrays, set_aside, write_arrays
from forerun.drafters.automaton import START, SuffixAutomaton
from forerun.errors import UsageError

_log = logging.getLogger("forerun")
_FORMAT = 1
# Tokens of a space, at most (about 130 bytes each while it is used).
_LIMIT = 200_000
# Spaces, at most.
_MOST_SPACES = 64


class Generation:
    """Texts indexed together, and forgotten together. saved: how many of them are in the file already."""

    def __init__(self, texts: Iterable[NDArray[np.int32]] = (), saved: int = 0) -> None:
        self.texts = list(texts)
        self.tokens = sum(map(len, self.texts))
        self.saved = saved
        self.whole = True  # unless adding a text was interrupted
        self._index: SuffixAutomaton | None = None

    @property
    def index(self) -> SuffixAutomaton:
        if self._index is None:
            index = SuffixAutomaton()
            for text in self.texts:
                _read_into(index, text)
            self._index = index
        return self._index

    def add(self, text: NDArray[np.int32]) -> None:
        self.whole = False
        self.texts.append(text)
        self.tokens += len(text)
        if self._index is not None:
            _read_into(self._index, text)
        self.whole = True


def _read_into(index: SuffixAutomaton, text: NDArray[np.int32]) -> None:
    state = START
    for token in text.tolist():
        state = index.extend(state, token)


class Space:
    """The memory of one name, at most `limit` tokens."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._generations: tuple[Generation, ...] = (Generation(),)

    @property
    def generations(self) -> tuple[Generation, ...]:
        """The young one first. One that an interrupt left half-written is replaced, so that who looks into it notices."""
        if not all(generation.whole for generation in self._generations):
            self._generations = tuple(g if g.whole else Generation(g.texts, g.saved) for g in self._generations)
        return self._generations

    def add(self, text: Sequence[int]) -> None:
        """Remember a text; of one longer than half the limit, its end."""
        half = self.limit // 2
        kept = np.asarray(text[max(0, len(text) - half) :], dtype=np.int32)
        if len(kept) < 2:
            return
        young = self.generations[0]
        if young.tokens + len(kept) > half and young.tokens:
            young = Generation()
            self._generations = (young, self._generations[0])
        young.add(kept)

    @property
    def tokens(self) -> int:
        return sum(generation.tokens for generation in self.generations)

    def texts(self) -> list[NDArray[np.int32]]:
        """What is remembered, oldest first."""
        return [text for generation in reversed(self.generations) for text in generation.texts]

    def unsaved(self) -> list[NDArray[np.int32]]:
        """The texts that no file has yet, oldest first."""
        return [text for generation in reversed(self.generations) for text in generation.texts[generation.saved :]]

    def mark_saved(self) -> None:
        """All texts are in the file now."""
        for generation in self.generations:
            generation.saved = len(generation.texts)


@dataclass(frozen=True)
class SpaceReport:
    """What a space holds."""

    name: str
    texts: int
    tokens: int


class History:
    """Named spaces of at most `limit` tokens each; of more than `most_spaces`, the one used longest ago is forgotten.

    vocabulary: names the tokenizer whose ids these are (any string); memories of two tokenizers do not mix.
    """

    def __init__(self, limit: int = _LIMIT, *, most_spaces: int = _MOST_SPACES, vocabulary: str = "") -> None:
        if limit < 4 or most_spaces < 1:
            raise UsageError(
                f"a memory of {limit} tokens in {most_spaces} spaces holds nothing; give at least 4 and 1."
            )
        self.limit, self.most_spaces, self.vocabulary = limit, most_spaces, vocabulary
        self._spaces: OrderedDict[str, Space] = OrderedDict()
        # What was done since it was loaded or saved, to be done again on whatever the file holds by then.
        self._used: dict[str, None] = {}
        self._forgotten: set[str] = set()
        self._asked: dict[str, Any] = {"limit": limit, "most_spaces": most_spaces}

    def space(self, name: str = "") -> Space:
        """The space of a name, made when it is missing."""
        self._used.pop(name, None)
        self._used[name] = None
        found = self._spaces.get(name)
        if found is None:
            found = self._spaces[name] = Space(self.limit)
            if len(self._spaces) > self.most_spaces:
                self._spaces.popitem(last=False)
        self._spaces.move_to_end(name)
        return found

    def clear(self, name: str | None = None) -> None:
        """Forget one space, or all."""
        for each in list(self._spaces) if name is None else [name]:
            self._spaces.pop(each, None)
            self._forgotten.add(each)

    def inspect(self) -> list[SpaceReport]:
        """What each space holds, the one used last at the end."""
        return [SpaceReport(name, len(space.texts()), space.tokens) for name, space in self._spaces.items()]

    def save(self, path: Path) -> None:
        """Bring a file up to date, whole or not at all: what others put into it since it was loaded stays.

        Raises OSError, and UsageError where the file is none of ours.
        """
        with locked(path):
            there = self._now_in(path)
            names = [name for name, space in there._spaces.items() for _ in space.texts()]
            texts = [text for space in there._spaces.values() for text in space.texts()]
            head = {
                "format": _FORMAT,
                "vocabulary": self.vocabulary,
                "limit": there.limit,
                "most_spaces": there.most_spaces,
                "spaces": names,
            }
            write_arrays(
                path,
                head,
                lengths=np.array([len(text) for text in texts], dtype=np.int64),
                tokens=np.concatenate([*texts, np.empty(0, dtype=np.int32)]),
            )
        self._settle()

    def _now_in(self, path: Path) -> History:
        """What the file holds now, changed as this history was."""
        there = History._open(path, vocabulary=self.vocabulary, **self._asked)
        for name in self._forgotten:
            there.clear(name)
        for name in self._used:
            space = there.space(name)
            for text in self._spaces[name].unsaved() if name in self._spaces else ():
                space.add(text.tolist())
        return there

    def _settle(self) -> None:
        for space in self._spaces.values():
            space.mark_saved()
        self._used.clear()
        self._forgotten.clear()

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        limit: int | None = None,
        most_spaces: int | None = None,
        vocabulary: str = "",
        vocab_size: int | None = None,
        own: bool = False,
    ) -> History:
        """Read what `save` wrote; empty where there is no file. limit, most_spaces: None are those it was saved with.

        vocab_size: token ids are below it. own: the file is one of forerun's cache, which must not stop anything: a
        damaged one is set aside with a warning, and the memory starts anew. Any other file stays as it is.
        Raises UsageError for the memory of another vocabulary, and for a file that is no memory or cannot be read.
        """
        asked: dict[str, Any] = {"limit": limit, "most_spaces": most_spaces}
        try:
            return cls._open(path, vocabulary=vocabulary, vocab_size=vocab_size, **asked)
        except _NoMemoryError as error:
            if not own:
                raise
            set_aside(path, error)
        except OSError as error:
            if not own:
                why = (error.strerror or str(error)).lower()
                raise UsageError(
                    f"cannot read the memory {path}: {why}; check the path and its permissions."
                ) from error
            _log.warning("%s cannot be read (%s); nothing is remembered from it.", path, error)
        history = cls(limit or _LIMIT, most_spaces=most_spaces or _MOST_SPACES, vocabulary=vocabulary)
        history._asked = asked
        return history

    @classmethod
    def _open(
        cls,
        path: Path,
        *,
        limit: int | None,
        most_spaces: int | None,
        vocabulary: str,
        vocab_size: int | None = None,
    ) -> History:
        """Raises OSError, UsageError, and of these _NoMemoryError for a file that is no memory."""
        history = cls(limit or _LIMIT, most_spaces=most_spaces or _MOST_SPACES, vocabulary=vocabulary)
        history._asked = {"limit": limit, "most_spaces": most_spaces}
        try:
            head, texts = _read(path, vocab_size)
        except FileNotFoundError:
            return history
        except DamagedError as error:
            raise _NoMemoryError(
                f"{path} is no memory file of forerun, or a damaged one ({error}); it stays as it is: name another file, "
                "or remove it."
            ) from error
        if vocabulary and head["vocabulary"] and head["vocabulary"] != vocabulary:
            raise UsageError(
                f"the memory in {path} holds tokens of {head['vocabulary']}, not of {vocabulary}; give another file."
            )
        history.vocabulary = vocabulary or head["vocabulary"]
        history.limit = limit or head.get("limit", _LIMIT)
        history.most_spaces = most_spaces or head.get("most_spaces", _MOST_SPACES)
        for name, text in zip(head["spaces"], texts, strict=True):
            history.space(name).add(text.tolist())
        history._settle()
        return history


class _NoMemoryError(UsageError):
    """A file is no memory, or a damaged one."""


def _read(path: Path, vocab_size: int | None) -> tuple[dict[str, Any], list[NDArray[np.int32]]]:
    """Head and texts of a file. Raises OSError, and DamagedError when anything in it is not as `save` writes it."""
    head, (lengths, tokens) = read_arrays(path, "lengths", "tokens")
    names = head.get("spaces")
    if head.get("format") != _FORMAT:
        raise DamagedError("not a memory file of this version")
    if tokens.dtype != np.int32 or tokens.ndim != 1 or lengths.dtype != np.int64 or lengths.ndim != 1:
        raise DamagedError("its types are wrong")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in [head.get("vocabulary"), *names]):
        raise DamagedError("its names are not text")
    if not all(isinstance(head.get(name, 4), int) and head.get(name, 4) >= 1 for name in ("limit", "most_spaces")):
        raise DamagedError("its limits are not numbers")
    if len(names) != len(lengths) or lengths.min(initial=0) < 0 or lengths.sum() != len(tokens):
        raise DamagedError("its lengths do not add up")
    if tokens.min(initial=0) < 0 or (vocab_size is not None and tokens.max(initial=-1) >= vocab_size):
        raise DamagedError("it has token ids outside the vocabulary")
    return head, np.split(tokens, np.cumsum(lengths)[:-1]) if len(lengths) else []
