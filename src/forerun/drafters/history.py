"""Texts of earlier requests, to find again in later ones: bounded, in named spaces that never see each other, on disk.

Each space is two generations of suffix automata. New texts go into the young one; when it holds half of the limit it
becomes the old one and what was old is forgotten, so eviction costs nothing and no text is indexed twice.
"""

from __future__ import annotations

import json
import zipfile
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.core.files import set_aside, writing
from forerun.drafters.automaton import START, SuffixAutomaton
from forerun.errors import UsageError

_FORMAT = 1
_LIMIT, _MOST_SPACES = 200_000, 64


class Generation:
    """Texts indexed together, and forgotten together."""

    def __init__(self) -> None:
        self.index = SuffixAutomaton()
        self.texts: list[NDArray[np.int32]] = []
        self.tokens = 0

    def add(self, text: Sequence[int]) -> None:
        kept = np.asarray(text, dtype=np.int32)
        self.texts.append(kept)
        self.tokens += len(kept)
        state = START
        for token in kept.tolist():
            state = self.index.extend(state, token)


class Space:
    """The memory of one name, at most `limit` tokens. `generations` has the young one first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.generations: tuple[Generation, ...] = (Generation(),)

    def add(self, text: Sequence[int]) -> None:
        """Remember a text; of one longer than half the limit, its end."""
        half = self.limit // 2
        text = text[max(0, len(text) - half) :]
        if len(text) < 2:
            return
        young = self.generations[0]
        if young.tokens + len(text) > half and young.tokens:
            young = Generation()
            self.generations = (young, self.generations[0])
        young.add(text)

    @property
    def tokens(self) -> int:
        return sum(generation.tokens for generation in self.generations)

    def texts(self) -> list[NDArray[np.int32]]:
        """What is remembered, oldest first."""
        return [text for generation in reversed(self.generations) for text in generation.texts]


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

    def space(self, name: str = "") -> Space:
        """The space of a name, made when it is missing."""
        found = self._spaces.get(name)
        if found is None:
            found = self._spaces[name] = Space(self.limit)
            if len(self._spaces) > self.most_spaces:
                self._spaces.popitem(last=False)
        self._spaces.move_to_end(name)
        return found

    def clear(self, name: str | None = None) -> None:
        """Forget one space, or all."""
        if name is None:
            self._spaces.clear()
        else:
            self._spaces.pop(name, None)

    def inspect(self) -> list[SpaceReport]:
        """What each space holds, the one used last at the end."""
        return [SpaceReport(name, len(space.texts()), space.tokens) for name, space in self._spaces.items()]

    def save(self, path: Path) -> None:
        """Write everything to a file, whole or not at all. Raises OSError."""
        names = [name for name, space in self._spaces.items() for _ in space.texts()]
        texts = [text for space in self._spaces.values() for text in space.texts()]
        head = {
            "format": _FORMAT,
            "vocabulary": self.vocabulary,
            "limit": self.limit,
            "most_spaces": self.most_spaces,
            "spaces": names,
        }
        with writing(path) as file:
            np.savez_compressed(
                file,
                head=np.frombuffer(json.dumps(head).encode(), dtype=np.uint8),
                lengths=np.array([len(text) for text in texts], dtype=np.int64),
                tokens=np.concatenate([*texts, np.empty(0, dtype=np.int32)]),
            )

    @classmethod
    def load(
        cls, path: Path, *, limit: int | None = None, most_spaces: int | None = None, vocabulary: str = ""
    ) -> History:
        """Read what `save` wrote; empty where there is no file. limit, most_spaces: None are those it was saved with.

        A damaged file is set aside beside itself with a warning, and the memory starts anew. Raises UsageError for the
        memory of another vocabulary.
        """
        history = cls(limit or _LIMIT, most_spaces=most_spaces or _MOST_SPACES, vocabulary=vocabulary)
        if not path.exists():
            return history
        try:
            head, texts = _read(path)
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            set_aside(path, error)
            return history
        if vocabulary and head["vocabulary"] and head["vocabulary"] != vocabulary:
            raise UsageError(
                f"the memory in {path} holds tokens of {head['vocabulary']}, not of {vocabulary}; give another file."
            )
        history.vocabulary = vocabulary or head["vocabulary"]
        history.limit = limit or head.get("limit", _LIMIT)
        history.most_spaces = most_spaces or head.get("most_spaces", _MOST_SPACES)
        for name, text in zip(head["spaces"], texts, strict=True):
            history.space(name).add(text.tolist())
        return history


def _read(path: Path) -> tuple[dict[str, Any], list[NDArray[np.int32]]]:
    """Head and texts of a file. Raises one of several errors when anything in it is not as `save` writes it."""
    with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
        head = json.loads(file["head"].tobytes().decode())
        lengths, tokens = file["lengths"], file["tokens"]
    if head["format"] != _FORMAT or len(head["spaces"]) != len(lengths):
        raise ValueError("not a memory file of this version")
    if not isinstance(head["vocabulary"], str) or not all(isinstance(name, str) for name in head["spaces"]):
        raise ValueError("its names are not text")
    if not all(isinstance(head.get(name, 4), int) and head.get(name, 4) >= 1 for name in ("limit", "most_spaces")):
        raise ValueError("its limits are not numbers")
    if tokens.dtype != np.int32 or tokens.ndim != 1 or lengths.min(initial=0) < 0 or lengths.sum() != len(tokens):
        raise ValueError("its lengths do not add up")
    if tokens.min(initial=0) < 0:
        raise ValueError("it has negative token ids")
    return head, np.split(tokens, np.cumsum(lengths)[:-1]) if len(lengths) else []
