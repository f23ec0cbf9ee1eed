"""A grammar as a constraint: which tokens may follow a text, and where the text may end."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from forerun.errors import BackendError, UsageError
from forerun.structured.grammars import Grammar, reason
from forerun.structured.vocabulary import Vocabulary
from forerun.tokenizers.tokenizer import Tokenizer

Mask = NDArray[np.bool_]


class GrammarConstraint:
    """See core.transcript.Constraint; follows one text.

    stop_ids: ids that end the text beside the model's end tokens. Where the grammar allows the text to end these may follow;
    where it allows nothing else, only these. After an end token (a text that goes on after it) and after a text that the
    grammar does not allow (a draft that is refused) only these may follow, too.
    Raises UsageError for a grammar that is not valid, allows no text or is too large, and where the text could not end.
    """

    def __init__(self, tokenizer: Tokenizer, grammar: Grammar, *, stop_ids: Collection[int] = ()) -> None:
        vocabulary = Vocabulary.of(tokenizer)
        self._size, self._grammar, self._words = vocabulary.size, grammar, vocabulary.llguidance()
        self._ends = end_ids(tokenizer, stop_ids)
        self._matcher = grammar.matcher(self._words)
        self._fresh = True  # the matcher has read nothing
        # What was committed, and whether that has left the grammar or ended. `_ahead` is what the matcher has read after it.
        self._committed: list[int] = []
        self._over = False
        self._ahead: list[int] = []
        self._masks: dict[tuple[int, ...], Mask] = {}
        self._only_ends = np.zeros(self._size, dtype=np.bool_)
        self._only_ends[self._ends] = True
        try:
            self.allowed(())
        except BackendError as error:
            raise UsageError(
                f"no text can begin as the {grammar.what} says ({error}); give one that allows some text."
            ) from error

    def allowed(self, path: Sequence[int]) -> Mask:
        """Raises BackendError where the grammar becomes too expensive to follow, or allows no token of this model."""
        key = tuple(path)
        mask = self._masks.get(key)
        if mask is None:
            mask = self._masks[key] = self._mask(key)
            mask.flags.writeable = False
        return mask

    def commit(self, token: int) -> None:
        self._masks = {path[1:]: mask for path, mask in self._masks.items() if path and path[0] == token}
        self._committed.append(token)
        if self._over:
            return
        if self._ahead and self._ahead[0] == token:
            del self._ahead[0]
        else:
            self._back(0)
            self._over = not self._reads(token)

    def restart(self, tokens: Sequence[int]) -> None:
        if self._fresh and not tokens:
            return  # another matcher for a large grammar takes a while, and every text begins with this
        self._masks = {}
        self._ahead, self._committed = [], list(tokens)
        self._rebuild()

    def _mask(self, path: tuple[int, ...]) -> Mask:
        if self._over or not self._follow(path):
            return self._only_ends
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        flags = np.unpackbits(bits, bitorder="little").view(np.bool_)
        mask = flags[: self._size]
        # llguidance's own end token stands behind the others.
        if flags[self._size]:
            mask[self._ends] = True
        return mask

    def _follow(self, path: tuple[int, ...]) -> bool:
        """Have the matcher read the path, whatever it has read ahead; false where that leaves the grammar."""
        shared = 0
        while shared < min(len(path), len(self._ahead)) and path[shared] == self._ahead[shared]:
            shared += 1
        self._back(shared)
        for token in path[shared:]:
            if not self._reads(token):
                return False
            self._ahead.append(token)
        return True

    def _back(self, length: int) -> None:
        """Take back what was read ahead, up to a length."""
        if len(self._ahead) > length:
            self._matcher.rollback(len(self._ahead) - length)
            del self._ahead[length:]
            self._check()

    def _reads(self, token: int) -> bool:
        """Have the matcher read a token, if the grammar allows it."""
        if not 0 <= token < self._size:
            return False
        self._fresh = False  # before it reads: an interrupt may leave nobody to say how far it came
        read = self._matcher.try_consume_tokens([token]) == 1
        self._check()
        return read

    def _check(self) -> None:
        """Raise BackendError where the matcher has failed; it never recovers, so another one takes its place."""
        if self._matcher.is_error():
            message = reason(self._matcher.get_error())
            self._ahead = []
            self._rebuild()
            raise BackendError(f"the {self._grammar.what} cannot be followed any further ({message}): simplify it.")

    def _rebuild(self) -> None:
        """A matcher that has read what was committed."""
        self._fresh = False
        self._matcher = self._grammar.matcher(self._words)
        self._over = any(self._matcher.try_consume_tokens([token]) != 1 for token in self._committed)
        self._fresh = not self._committed


def end_ids(tokenizer: Tokenizer, stop_ids: Collection[int]) -> list[int]:
    """The ids that end a text, in order. Raises UsageError where there are none."""
    ends = sorted(token for token in {*tokenizer.eos_ids, *stop_ids} if 0 <= token < tokenizer.vocab_size)
    if not ends:
        raise UsageError(
            "the model names no end token, so an answer of a given form could not end: give one in stop_token_ids."
        )
    return ends
