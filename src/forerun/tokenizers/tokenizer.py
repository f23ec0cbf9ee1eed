"""Text to token ids and back, the same way for every kind of model file.

A `Tokenizer` is exact about three things that tokenizers differ in: control tokens in a user's text stay text unless the
caller asks otherwise, every id has its bytes (so that text can be streamed without breaking a character), and ids that
only pad the model's tables are not part of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Literal

from forerun.errors import PromptError
from forerun.tokenizers.control import ControlStrings

if TYPE_CHECKING:
    from forerun.tokenizers.engine import Engine

SPACE = "\u2581"
# Tokens that end a turn or a text wherever they are control tokens, also where the file's own list leaves them out.
END_TOKENS = frozenset(
    {
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<end_of_turn>",
        "<|end|>",
        "<|eot|>",
        "<EOT>",
    }
)


@dataclass(frozen=True)
class Vocabulary:
    """What a model file says about its tokens, apart from how text is split into them.

    tokens: the string of each id, without the ids that only pad; byte-level tokens in the usual printable alphabet.
    control: ids of tokens that structure the input and are no text (BOS, <|im_start|>, <unused7>, ...).
    literal: ids whose string is the text itself (user-defined and control tokens), outside the byte alphabet.
    spelling: `bytes` for byte-level tokens, `pieces` for SentencePiece (U+2581 is a space, <0x0A> a byte).
    strips_space: whether one space in front of a text was put there by encoding and goes again in decoding.
    adds_space: whether that space must be put there before the engine sees the text, in front and after control tokens.
    """

    tokens: Sequence[str]
    control: frozenset[int]
    literal: frozenset[int]
    spelling: Literal["bytes", "pieces"]
    eos_ids: frozenset[int]
    bos_id: int | None
    add_bos: bool
    strips_space: bool = False
    adds_space: bool = False
    chat_template: str | None = None
    eos_id: int | None = None


class Tokenizer:
    """Encodes and decodes for one model. Safe to share between threads."""

    def __init__(self, engine: Engine, vocabulary: Vocabulary) -> None:
        self._engine, self._vocabulary = engine, vocabulary
        self._bytes: dict[int, bytes] = {}

    @property
    def vocab_size(self) -> int:
        """Ids below this are tokens; rows of the model past it are padding and are never sampled."""
        return len(self._vocabulary.tokens)

    @property
    def tokens(self) -> Sequence[str]:
        """The string of every id, as in the original vocabulary: what two tokenizers are compared by."""
        return self._vocabulary.tokens

    @property
    def control_ids(self) -> frozenset[int]:
        """Ids that are structure, not text."""
        return self._vocabulary.control

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends generation: end of text, end of turn."""
        return self._vocabulary.eos_ids

    @property
    def eos_id(self) -> int | None:
        """The one that the file names first, as chat templates see it."""
        return self._vocabulary.eos_id

    @property
    def bos_id(self) -> int | None:
        """The id of the begin-of-text token, whether or not it is ever added."""
        return self._vocabulary.bos_id

    @property
    def add_bos(self) -> bool:
        """Whether plain text gets BOS in front; chat templates write their own."""
        return self._vocabulary.add_bos

    @property
    def chat_template(self) -> str | None:
        """The file's Jinja chat template, None for base models."""
        return self._vocabulary.chat_template

    @property
    def strips_space(self) -> bool:
        """Whether `decode` takes away one space at the start of a text, because `encode` puts one there."""
        return self._vocabulary.strips_space

    def encode(self, text: str, *, special: bool = False, add_bos: bool | None = None) -> list[int]:
        """Token ids of `text`.

        special: read the strings of control tokens as those tokens (for rendered templates); else they are plain text.
        add_bos: put BOS in front; None does as the model file says.
        Raises PromptError for text that is not Unicode (half a surrogate pair), or that the tokenizer cannot take apart.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise PromptError("the text holds half a character (a lone surrogate): pass well-formed Unicode") from error
        ids = [i for part in self._parts(text, special) for i in self._engine.encode(part, special)]
        unknown = next((i for i in ids if i >= self.vocab_size), None)
        if unknown is not None:
            raise PromptError(
                f"the text holds {self._engine.name(unknown)}, which the model has no row for: leave it out"
            )
        if (self.add_bos if add_bos is None else add_bos) and self.bos_id is not None:
            ids.insert(0, self.bos_id)
        return ids

    def _parts(self, text: str, special: bool) -> list[str]:
        """The text as the engine is to see it: SentencePiece puts a space in front of each run of text."""
        if not self._vocabulary.adds_space:
            return [text]
        runs = self.split_control(text) if special else [text]
        return [run if i % 2 else f" {run}" for i, run in enumerate(runs) if run]

    def split_control(self, text: str) -> list[str]:
        """Runs of text and, at every odd place, the string of a control token."""
        return self._control.split(text)

    @cached_property
    def _control(self) -> ControlStrings:
        return ControlStrings(self.tokens[i] for i in self.control_ids if i < self.vocab_size)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True, continues: bool = False) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD.

        skip_special: leave out control tokens.
        continues: the text goes on from an earlier one, so that a space at its start is a space.
        """
        control = self.control_ids if skip_special else frozenset()
        text = b"".join(self.token_bytes(i) for i in ids if i not in control).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.strips_space and not continues else text

    def id_to_token(self, token: int) -> str:
        """The string of an id, `[PAD123]` for padding. Raises IndexError for a negative id."""
        if token < 0:
            raise IndexError(f"{token} is not a token id")
        return self.tokens[token] if token < self.vocab_size else f"[PAD{token}]"

    def token_bytes(self, token: int) -> bytes:
        """The bytes an id adds to the text, control tokens spelled out; empty for padding."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._spell(token)
        return known

    def _spell(self, token: int) -> bytes:
        if not 0 <= token < self.vocab_size:
            return b""
        string, vocabulary = self.tokens[token], self._vocabulary
        if vocabulary.spelling == "pieces":
            if token in vocabulary.control:
                return string.encode()
            if len(string) == 6 and string.startswith("<0x") and string.endswith(">"):
                return bytes.fromhex(string[3:5])
            return string.replace(SPACE, " ").encode()
        if token in vocabulary.literal:
            return string.encode()
        alphabet = byte_alphabet()
        return b"".join(alphabet.get(char) or char.encode() for char in string)


@lru_cache(maxsize=1)
def byte_alphabet() -> dict[str, bytes]:
    """The printable character that stands for each byte in byte-level vocabularies (GPT-2's), and the byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): bytes([byte]) for byte in printable}
    return alphabet | {chr(0x100 + i): bytes([byte]) for i, byte in enumerate(others)}


def byte_tokenizer() -> Tokenizer:
    """A tokenizer without a model: ids 0 to 255 are the bytes, 256 is `<|endoftext|>`. For tests and toy models."""
    import tokenizers

    from forerun.tokenizers.engine import LocalEngine

    end = "<|endoftext|>"
    ids = {char: byte[0] for char, byte in byte_alphabet().items()}
    engine = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=ids | {end: 256}, merges=[]))
    engine.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine.add_special_tokens([tokenizers.AddedToken(end, special=True, normalized=False)])
    tokens = [*sorted(ids, key=ids.__getitem__), end]
    only_end = frozenset({256})
    return Tokenizer(
        LocalEngine(engine), Vocabulary(tokens, only_end, only_end, "bytes", only_end, None, add_bos=False, eos_id=256)
    )
