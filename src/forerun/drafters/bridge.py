"""Reading and proposing across two vocabularies: what lets a model of another tokenizer draft.

The target's text is written again in the draft model's tokens: once and for all up to the last start of a word, and
anew each time after it, since the last word may still become another. Tokens that stand for the same bytes on both
sides are *shared*: a model restricted to them can draft for the target id by id (TLI, 2502.05202).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from forerun.core.transcript import Transcript
from forerun.tokenizers.tokenizer import Tokenizer

# Tokens of the target that are read anew each time, at most.
_LONGEST = 48


class Reading(Protocol):
    """A text as a draft model reads it."""

    @property
    def tokens(self) -> Sequence[int]:
        """In the draft model's ids, up to a place that never changes; it only grows."""
        ...

    def tail(self, path: Sequence[int]) -> tuple[int, ...] | None:
        """What follows `tokens`: the rest of the text, and the target's tokens of `path`. None where it has no ids."""
        ...

    def token(self, token: int) -> int:
        """The draft model's id of a token that it proposed."""
        ...


class SameIds:
    """Target and draft model mean the same by the same ids. rows: how many of them the draft model can read."""

    def __init__(self, transcript: Transcript, rows: int) -> None:
        self._transcript, self._rows = transcript, rows
        self._known = 0

    @property
    def tokens(self) -> Sequence[int]:
        return self._transcript.tokens

    def tail(self, path: Sequence[int]) -> tuple[int, ...] | None:
        tokens, rows = self._transcript.tokens, self._rows
        while self._known < len(tokens) and tokens[self._known] < rows:
            self._known += 1
        readable = self._known == len(tokens) and all(token < rows for token in path)
        return tuple(path) if readable else None

    def token(self, token: int) -> int:
        return token


class Shared:
    """Which tokens two vocabularies share, by the bytes that they stand for; control tokens by their names.

    to_draft: the draft model's id of each of the target's, -1 where it has none.
    ids, rows: the shared tokens in the target's ids and in the draft model's, in one order.
    """

    def __init__(self, target: Tokenizer, draft: Tokenizer) -> None:
        self.target, self.draft = target, draft
        known = {_key(draft, token): token for token in reversed(range(draft.vocab_size))}
        self.to_draft: NDArray[np.int64] = np.full(target.vocab_size, -1, dtype=np.int64)
        used: set[int] = set()
        for token in range(target.vocab_size):
            other = known.get(_key(target, token), -1)
            if other >= 0 and other not in used and target.token_bytes(token):
                self.to_draft[token] = other
                used.add(other)
        if target.eos_id is not None and draft.eos_id is not None and draft.eos_id not in used:
            self.to_draft[target.eos_id] = draft.eos_id
        self.ids: NDArray[np.int64] = np.flatnonzero(self.to_draft >= 0)
        self.rows: NDArray[np.int64] = self.to_draft[self.ids]

    @property
    def overlap(self) -> float:
        """The share of the target's tokens that are shared."""
        return len(self.ids) / max(1, self.target.vocab_size)

    def read(self, tokens: Sequence[int]) -> list[int]:
        """The draft model's tokens for a run of the target's; bytes that are half a character at its end are left out."""
        found: list[int] = []
        text = b""
        for token in tokens:
            if token in self.target.control_ids:
                found += self._encode(text)
                text = b""
                other = int(self.to_draft[token]) if token < len(self.to_draft) else -1
                found += [other] if other >= 0 else self.draft.encode(self.target.id_to_token(token), add_bos=False)
            else:
                text += self.target.token_bytes(token)
        return found + self._encode(text)

    def _encode(self, text: bytes) -> list[int]:
        whole = text.decode("utf-8", "ignore")
        if self.draft.strips_space:
            whole = whole.removeprefix(" ")  # `encode` puts one in front of every run
        return self.draft.encode(whole, add_bos=False) if whole else []

    def starts_word(self, token: int) -> bool:
        """Whether a text can be cut before this token of the target without changing how the rest is read."""
        return token in self.target.control_ids or self.target.token_bytes(token)[:1] in (b" ", b"\n")


class Translation:
    """A text in the tokens of another vocabulary."""

    def __init__(self, transcript: Transcript, shared: Shared) -> None:
        self._transcript, self._shared = transcript, shared
        bos = shared.draft.bos_id if shared.draft.add_bos else None
        self._fixed: list[int] = [] if bos is None else [bos]
        self._cut = 0  # tokens of the text that are in `_fixed`
        self._read = 0
        self._open: tuple[int, list[int]] = (-1, [])

    @property
    def tokens(self) -> Sequence[int]:
        self._catch_up()
        return self._fixed

    def tail(self, path: Sequence[int]) -> tuple[int, ...] | None:
        self._catch_up()
        tokens = self._transcript.tokens
        if self._open[0] != len(tokens):
            self._open = (len(tokens), self._shared.read(tokens[self._cut :]))
        mapped = [self.token(token) for token in path]
        if any(token < 0 for token in mapped):
            return self.spelled(path)
        found = (*self._open[1], *mapped)
        return found if self._fixed or found else None

    def spelled(self, path: Sequence[int]) -> tuple[int, ...] | None:
        """`tail`, with the path read as text, not id by id."""
        found = tuple(self._shared.read([*self.open, *path]))
        return found if self._fixed or found else None

    @property
    def open(self) -> list[int]:
        """The target's tokens after those that `tokens` stand for."""
        self._catch_up()
        return self._transcript.tokens[self._cut :]

    def token(self, token: int) -> int:
        known = self._shared.to_draft
        return int(known[token]) if token < len(known) else -1

    def _catch_up(self) -> None:
        """Fix everything before the last start of a word."""
        tokens = self._transcript.tokens
        start = max(self._read, self._cut + 1)
        at = next((at for at in range(len(tokens) - 1, start - 1, -1) if self._shared.starts_word(tokens[at])), 0)
        if not at and len(tokens) - self._cut > _LONGEST:
            at = len(tokens) - 1  # a script without spaces, or one very long word
        if at:
            self._fixed += self._shared.read(tokens[self._cut : at])
            self._cut = at
        self._read = len(tokens)


def _key(tokenizer: Tokenizer, token: int) -> tuple[bool, bytes]:
    return token in tokenizer.control_ids, tokenizer.token_bytes(token)
