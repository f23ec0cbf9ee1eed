"""A tokenizer's tokens as bytes: for llguidance, and for finding those that spell a given text."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator
from functools import cached_property
from weakref import WeakKeyDictionary

from llguidance import LLTokenizer, TokenizerWrapper

from forerun.tokenizers.tokenizer import Tokenizer

_kept: WeakKeyDictionary[Tokenizer, Vocabulary] = WeakKeyDictionary()
_lock = threading.Lock()


class Vocabulary:
    """What constraints need to know of a tokenizer. `Vocabulary.of` makes one per tokenizer and keeps it as long as that.

    Control tokens are never text here: a grammar produces one only where it names it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.size = tokenizer.vocab_size
        self.control = tokenizer.control_ids
        self.words = [tokenizer.token_bytes(token) for token in range(self.size)]
        # No reference to the tokenizer: it is the key under which this is kept.
        self._strings = {tokenizer.tokens[token]: token for token in sorted(self.control) if token < self.size}
        self._lock = threading.Lock()

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary:
        """The vocabulary of a tokenizer."""
        with _lock:
            known = _kept.get(tokenizer)
            if known is None:
                known = _kept[tokenizer] = cls(tokenizer)
            return known

    def llguidance(self) -> LLTokenizer:
        """The same for llguidance. The first call takes a second or so for 150,000 tokens."""
        with self._lock:
            return self._llguidance

    @cached_property
    def _llguidance(self) -> LLTokenizer:
        return LLTokenizer(TokenizerWrapper(_Words(self)))

    def control_id(self, string: str) -> int | None:
        """The control token of this string, None where there is none."""
        return self._strings.get(string)

    def starting_with(self, text: bytes) -> Iterator[tuple[int, bytes]]:
        """Tokens of text that begin with these bytes, and a control token that is spelled exactly so."""
        control = self._strings.get(text.decode("utf-8", "replace"))
        if control is not None:
            yield control, text
        for place in range(bisect_left(self._sorted, (text, -1)), len(self._sorted)):
            word, token = self._sorted[place]
            if not word.startswith(text):
                return
            yield token, word

    def exactly(self, text: bytes) -> int | None:
        """The token of exactly these bytes, a control token before others; of several the lowest."""
        return next((token for token, word in self.starting_with(text) if word == text), None)

    @cached_property
    def _sorted(self) -> list[tuple[bytes, int]]:
        return sorted((word, token) for token, word in enumerate(self.words) if word and token not in self.control)

    def first_of(self, tokenizer: Tokenizer, text: bytes) -> int | None:
        """The first token of the way to write `text`: as the tokenizer would if that spells it, else the longest that fits.

        None where no token fits.
        """
        whole = self.exactly(text)
        if whole is not None:
            return whole
        ids = tokenizer.encode(text.decode("utf-8", "replace"), add_bos=False)
        if ids and b"".join(self.words[token] for token in ids) == text:
            return ids[0]
        fits = (self.exactly(text[:size]) for size in range(len(text) - 1, 0, -1))
        return next((token for token in fits if token is not None), None)


class _Words:
    """What llguidance's TokenizerWrapper wraps. It has no end token: where a text may end is asked apart from the mask."""

    eos_token_id = None
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.words
        self.special_token_ids = sorted(token for token in vocabulary.control if token < vocabulary.size)

    def __call__(self, text: str | bytes) -> list[int]:
        """Would be used to force the tokens of text that has to follow, which grammars here switch off."""
        raise NotImplementedError
