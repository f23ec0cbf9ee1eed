"""Bounds on what a model thinks, and constraints on what it says after thinking (see text.reasoning for what thinks)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from forerun.core.transcript import Constraint
from forerun.errors import UsageError, quoted
from forerun.structured.constraint import end_ids
from forerun.structured.together import leads_along
from forerun.structured.vocabulary import Vocabulary
from forerun.text.reasoning import THINK, Phase, Tags, Thought
from forerun.tokenizers.tokenizer import Tokenizer

Mask = NDArray[np.bool_]


class TokenBudget:
    """At most so many tokens of thinking; then only the closing tag may follow. See core.transcript.Constraint.

    limit: tokens between the tags, 0 or more. starts_inside: the prompt ends with the opening tag.
    Raises UsageError for another limit, and for a closing tag that the model cannot write.
    """

    def __init__(self, tokenizer: Tokenizer, limit: int, *, tags: Tags = THINK, starts_inside: bool = False) -> None:
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
            raise UsageError(f"the budget for thinking is {quoted(limit)}; it must be a whole number, at least 0.")
        self._limit, self._closing = limit, tags.close.encode()
        self._vocabulary = Vocabulary.of(tokenizer)
        self._start = self._thought = Thought.start(tags, starts_inside)
        self._forced = {size: self._next(tokenizer, self._closing[size:]) for size in range(len(self._closing))}

    def allowed(self, path: Sequence[int]) -> Mask | None:
        thought = self._thought
        for token in path:
            thought = read(self._vocabulary, thought, token)
        if thought.phase is not Phase.INSIDE or thought.tokens < self._limit:
            return None
        mask = np.zeros(self._vocabulary.size, dtype=np.bool_)
        mask[self._forced[len(thought.tail)]] = True
        return mask

    def commit(self, token: int) -> None:
        self._thought = read(self._vocabulary, self._thought, token)

    def restart(self, tokens: Sequence[int]) -> None:
        self._thought = self._start
        for token in tokens:
            self.commit(token)

    def _next(self, tokenizer: Tokenizer, rest: bytes) -> int:
        """The token with which the rest of the closing tag begins."""
        token = self._vocabulary.first_of(tokenizer, rest)
        if token is None:
            raise UsageError(
                f"the model has no tokens for {self._closing.decode()}, so its thinking cannot be ended: set no budget."
            )
        return token


class AfterThinking:
    """A constraint on what is said: it begins after the closing tag, or with the text where the model does not think.

    While the text thinks it may not end, and no token may hold the end of the closing tag and more. See
    core.transcript.Constraint.

    inner: follows the content alone; its text is empty until then. stop_ids: as GrammarConstraint has them. starts_inside:
    the prompt ends with the opening tag. Raises UsageError where a text could not end.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        inner: Constraint,
        *,
        stop_ids: Collection[int] = (),
        tags: Tags = THINK,
        starts_inside: bool = False,
    ) -> None:
        self._inner, self._opening, self._closing = inner, tags.open.encode(), tags.close.encode()
        self._vocabulary = Vocabulary.of(tokenizer)
        self._start = self._thought = Thought.start(tags, starts_inside)
        # Content that may yet turn out to be space before the opening tag; the inner constraint has not read it.
        self._waiting: list[int] = []
        self._thinking: dict[bytes, Mask] = {}
        free = np.ones(self._vocabulary.size, dtype=np.bool_)
        free[end_ids(tokenizer, stop_ids)] = False
        for token, word in enumerate(self._vocabulary.words):
            if self._closing in word and word.find(self._closing) + len(self._closing) < len(word):
                free[token] = False
        self._free = free

    def allowed(self, path: Sequence[int]) -> Mask | None:
        thought, said = self._thought, [*self._waiting]
        for token in path:
            thought, said = self._goes_on(thought, said, token)
        if thought.phase is Phase.INSIDE:
            return self._while_thinking(thought.tail)
        if thought.phase is not Phase.BEFORE:
            return self._inner.allowed(said)
        result = np.zeros(self._vocabulary.size, dtype=np.bool_)
        result[self._toward_opening(thought.tail)] = True
        if leads_along(self._inner, said):
            mask = self._inner.allowed(said)
            if mask is None:
                return None
            result[: len(mask)] |= mask[: len(result)]
        return result

    def commit(self, token: int) -> None:
        self._thought, said = self._goes_on(self._thought, self._waiting, token)
        if self._thought.over:
            for spoken in said:
                self._inner.commit(spoken)
            said = []
        self._waiting = said

    def restart(self, tokens: Sequence[int]) -> None:
        self._thought, self._waiting = self._start, []
        self._inner.restart(())
        for token in tokens:
            self.commit(token)

    def _goes_on(self, thought: Thought, said: list[int], token: int) -> tuple[Thought, list[int]]:
        """Thinking and the content so far (past what the inner constraint has read), with one more token."""
        after = read(self._vocabulary, thought, token)
        thinks = after.phase is Phase.INSIDE or (after.phase is Phase.CLOSED and not thought.over)
        return after, [] if thinks else [*said, token]

    def _while_thinking(self, tail: bytes) -> Mask:
        mask = self._thinking.get(tail)
        if mask is None:
            mask = self._free.copy()
            for size in range(1, len(tail) + 1):
                if self._closing.startswith(tail[len(tail) - size :]):
                    rest = self._closing[size:]
                    for token, word in self._vocabulary.starting_with(rest):
                        if len(word) > len(rest):
                            mask[token] = False
            self._thinking[tail] = mask
        return mask

    def _toward_opening(self, tail: bytes) -> list[int]:
        """Tokens with which the opening tag goes on, or ends."""
        rest = self._opening[len(tail) :]
        parts = (self._vocabulary.exactly(rest[:size]) for size in range(1, len(rest)))
        whole = [token for token, _ in self._vocabulary.starting_with(rest)]
        return [*(token for token in parts if token is not None), *whole]


def read(vocabulary: Vocabulary, thought: Thought, token: int) -> Thought:
    """How far thinking is after one more token."""
    return thought.after(vocabulary.words[token] if 0 <= token < vocabulary.size else b"")[0]
