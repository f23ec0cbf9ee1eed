"""What a model thinks, apart from what it says: text between <think> and </think>, found in text as it comes.

One rule for everybody who asks (the parser here, bounds on thinking, grammars that start after it): a text thinks if it starts
inside, or if nothing but space comes before the opening tag; from the first closing tag on, everything is content. Tags may
be spread over tokens, share tokens with other text, or be control tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from forerun.tokenizers.tokenizer import Tokenizer

_SPACE: Final = b" \t\r\n"


@dataclass(frozen=True)
class Tags:
    """What opens and what closes the thinking."""

    open: str = "<think>"
    close: str = "</think>"


THINK: Final = Tags()


class Phase(Enum):
    BEFORE = "nothing but space yet, and perhaps a part of the opening tag"
    INSIDE = "thinking"
    CLOSED = "content after the thinking"
    NEVER = "content without any thinking"


@dataclass(frozen=True)
class Thought:
    """How far a text has come, as a function of its bytes.

    tail: the end of the text that may still turn out to belong to a tag. tokens: how many tokens of the text think: those
    that begin between the tags. held: bytes of each token that lies wholly in the tail.
    """

    tags: Tags = THINK
    phase: Phase = Phase.BEFORE
    tail: bytes = b""
    tokens: int = 0
    held: tuple[int, ...] = ()

    @classmethod
    def start(cls, tags: Tags = THINK, starts_inside: bool = False) -> Thought:
        """Of the empty text. starts_inside: the prompt has opened the thinking already."""
        return cls(tags, Phase.INSIDE if starts_inside else Phase.BEFORE)

    @property
    def over(self) -> bool:
        """Whether everything that follows is content."""
        return self.phase in (Phase.CLOSED, Phase.NEVER)

    def after(self, data: bytes) -> tuple[Thought, bytes, bytes]:
        """The text goes on with the bytes of a token: how far it is then, and the thinking and the content now certain."""
        if self.over:
            return self, b"", data
        if self.phase is Phase.BEFORE:
            return self._before(data)
        return self._inside(data, data)

    def _before(self, data: bytes) -> tuple[Thought, bytes, bytes]:
        text = self.tail + data
        begun = text.lstrip(_SPACE)
        space = text[: len(text) - len(begun)]
        opening = self.tags.open.encode()
        if len(begun) < len(opening) and opening.startswith(begun):
            return Thought(self.tags, Phase.BEFORE, begun), b"", space
        if not begun.startswith(opening):
            return Thought(self.tags, Phase.NEVER), b"", text
        inside = Thought(self.tags, Phase.INSIDE)
        thought, thinking, content = inside._inside(begun[len(opening) :], None)
        return thought, thinking, space + content

    def _inside(self, data: bytes, token: bytes | None) -> tuple[Thought, bytes, bytes]:
        """token: the one that `data` is, None for the rest of one that began in the opening tag."""
        closing, text = self.tags.close.encode(), self.tail + data
        lengths = self.held if token is None else (*self.held, len(token))
        found = text.find(closing)
        if found >= 0:
            # Tokens that begin in the tag, or after it, do not think.
            beginning, start = 0, len(text) - sum(lengths)
            for length in lengths:
                beginning += start < found
                start += length
            tokens = self.tokens - len(self.held) + beginning
            return Thought(self.tags, Phase.CLOSED, tokens=tokens), text[:found], text[found + len(closing) :]
        size = overlap(text, closing)
        held = len(lengths)
        while held and sum(lengths[held - 1 :]) <= size > 0:
            held -= 1
        tokens = self.tokens + (token is not None)
        thought = Thought(self.tags, Phase.INSIDE, text[len(text) - size :], tokens, lengths[held:])
        return thought, text[: len(text) - size], b""


def overlap(text: bytes, tag: bytes) -> int:
    """Length of the longest end of the text that begins the tag without being the whole of it."""
    sizes = range(min(len(tag) - 1, len(text)), 0, -1)
    return next((size for size in sizes if tag.startswith(text[len(text) - size :])), 0)


@dataclass(frozen=True)
class Split:
    """A piece of text, taken apart."""

    reasoning: str = ""
    content: str = ""


class ReasoningParser:
    """Fed with the tokens of a text and the pieces that they add to it; nothing is lost, doubled or put in another order.

    starts_inside: the prompt ends with the opening tag. Pieces may come later than their tokens (stop strings hold text
    back), so tokens are counted by their own bytes; tags that are control tokens take their place when their token comes.
    """

    def __init__(self, tokenizer: Tokenizer, tags: Tags = THINK, *, starts_inside: bool = False) -> None:
        self._tokenizer = tokenizer
        self._text = self._read = Thought.start(tags, starts_inside)
        self._control = {
            token: tokenizer.id_to_token(token)
            for token in tokenizer.control_ids
            if tokenizer.id_to_token(token) in (tags.open, tags.close)
        }

    @property
    def reasoning_tokens(self) -> int:
        """How many of the tokens think: those that begin between the tags."""
        return self._read.tokens

    @property
    def inside(self) -> bool:
        """Whether the text is thinking."""
        return self._text.phase is Phase.INSIDE

    def push(self, token: int, piece: str) -> Split:
        """A token and the text that it adds: what of the text is certain now."""
        self._read = self._read.after(self._tokenizer.token_bytes(token))[0]
        tag = self._control.get(token)
        return self._take(piece if tag is None else tag + piece)

    def finish(self, piece: str = "") -> Split:
        """The last text, without a token, and whatever was held back."""
        last = self._take(piece)
        held = self._text.tail.decode()
        inside = self.inside
        self._text = Thought(self._text.tags, Phase.CLOSED)
        return Split(last.reasoning + held * inside, last.content + held * (not inside))

    def _take(self, text: str) -> Split:
        self._text, reasoning, content = self._text.after(text.encode())
        return Split(reasoning.decode(), content.decode())
