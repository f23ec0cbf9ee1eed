"""How each named kind of byte-level tokenizer splits text before merging.

A GGUF file names its pre-tokenizer (`tokenizer.ggml.pre`) without spelling it out. Each name here stands for the
regular expressions, digit rule and normalizer of the tokenizer.json that such files are made from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _TAIL
_QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _TAIL
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class PreTokenizer:
    """The rules of one kind.

    splits: regular expressions applied one after the other; each match is a piece of its own, and so is what lies between.
    normalizer: Unicode form that text is brought to first.
    ignore_merges: a piece that is a token as a whole is that token, whatever the merges say.
    add_bos: whether BOS is put in front where the file does not say.
    """

    splits: tuple[str, ...]
    normalizer: Literal["NFC"] | None = None
    ignore_merges: bool = False
    add_bos: bool = False


_LLAMA_BPE = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_DIGIT_BY_DIGIT = PreTokenizer((r"\p{N}", _GPT2))

PRE_TOKENIZERS = {
    "gpt-2": PreTokenizer((_GPT2,)),
    "smollm": _DIGIT_BY_DIGIT,
    "qwen2": PreTokenizer((_QWEN2,), normalizer="NFC"),
    "llama-bpe": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    # Files from before names were recorded, and those whose converter knew none.
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
}
