"""Whether a tokenizer.json is made of nothing but parts that are known to take little time and memory.

Read from its description, before anything of it is run: a file may chain parts that double a text, and may bring regular
expressions that take for ever on some texts. What is not plain is no worse a tokenizer; it runs in a process of its own
(tokenizers.engine). Plain are

    byte-pair encodings (merging takes n log n);
    normalizers and pre-tokenizers of the kinds below, at most 32 of them, which together make a text at most 16 times as
        long (Llama 2: 12) apart from what Unicode normalization does to it, which is in the text and not in the file;
    regular expressions that are alternatives of the list below: in none of them is one repetition inside another, so
        that they take steps in proportion to the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, prod
from typing import Any, Final

from forerun.tokenizers.pre_tokenizers import CONTRACTIONS, LOWER, UPPER

MOST_GROWTH: Final = 16
MOST_PARTS: Final = 32

# The alternatives of the expressions of GPT-2, cl100k, o200k, Llama 3, Qwen 2 to 3.5, Tekken, DeepSeek and their like.
_LETTERS: Final = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
ALTERNATIVES: Final = (
    "'s", "'t", "'re", "'ve", "'m", "'ll", "'d",
    CONTRACTIONS, r"'(?i:[sdmt]|ll|ve|re)", r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])",
    r" ?\p{L}+", r"[^\r\n\p{L}\p{N}]?\p{L}+", r"[^\r\n\p{L}\p{N}]?+\p{L}+", r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+", r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""",
    *_LETTERS, *(f"{letters}{CONTRACTIONS}?" for letters in _LETTERS),
    r"\p{N}", r"\p{N}+", r" ?\p{N}+", r"\p{N}{1,3}", r"\p{N}{1}", "[0-9]", "[0-9][0-9][0-9]", r"\d", r"\d+",
    r" ?[^\s\p{L}\p{N}]+", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]++[\r\n]*",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}\r\n]+",
    r" ?[\p{P}\p{S}]+[\r\n]*", r"[\p{P}\$\+<=>\^~\|]+", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"\s*[\r\n]+", r"\s*[\r\n]", r"[\r\n]", r"\s+(?!\S)", r"\s+", r"\s", " {2,}", " ",
)  # fmt: skip
# What reads a whole run in vain, and would again from each place in it, unless the other then takes the run.
NEEDED: Final = {
    r"\s*[\r\n]+": r"\s+",
    r"\s*[\r\n]": r"\s+",
    _LETTERS[0]: _LETTERS[1],
    f"{_LETTERS[0]}{CONTRACTIONS}?": f"{_LETTERS[1]}{CONTRACTIONS}?",
}
_STEADY: Final = {
    # Normalizers.
    *("NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "Strip", "StripAccents"),
    # Pre-tokenizers.
    *("Digits", "Punctuation", "Whitespace", "WhitespaceSplit", "CharDelimiterSplit", "UnicodeScripts"),
}


def is_plain(described: Mapping[str, Any]) -> bool:
    """Whether the tokenizer that the contents of a tokenizer.json describe is plain."""
    model = described.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE" or "merges" not in model:
        return False
    parts = [*_parts(described.get("normalizer")), *_parts(described.get("pre_tokenizer"))]
    return len(parts) <= MOST_PARTS and prod(map(_growth, parts)) <= MOST_GROWTH


def has_known_regexes(part: Any) -> bool:
    """Whether every regular expression in a part of a tokenizer.json is made of known alternatives."""
    if isinstance(part, dict):
        return all(is_known(value) if key == "Regex" else has_known_regexes(value) for key, value in part.items())
    return not isinstance(part, list) or all(map(has_known_regexes, part))


def is_known(regex: object) -> bool:
    """Whether a regular expression is made of known alternatives, line ends in it written as such or as escapes."""
    if not isinstance(regex, str):
        return False
    text, at, found = regex.replace("\r", r"\r").replace("\n", r"\n") + "|", 0, set()
    while at < len(text):
        known = [alternative for alternative in ALTERNATIVES if text.startswith(f"{alternative}|", at)]
        if not known:
            return False
        found.add(known[0])
        at += len(known[0]) + 1
    return all(NEEDED.get(alternative, alternative) in found for alternative in found)


def _parts(part: Any) -> list[Any]:
    """The parts of a chain, however they are nested."""
    if part is None:
        return []
    inner = part.get("normalizers", part.get("pretokenizers")) if isinstance(part, dict) else None
    if not isinstance(inner, list):
        return [part]
    return [leaf for item in inner for leaf in _parts(item)]


def _growth(part: Any) -> float:
    """How many times as long a part can make a text, in bytes; infinity for a part that is not known."""
    match part:
        case {"type": str(kind)} if kind in _STEADY:
            return 1
        case {"type": "Split", "pattern": {"String": str()}}:
            return 1
        case {"type": "Split", "pattern": {"Regex": regex}}:
            return 1 if is_known(regex) else inf
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if old:
            return max(1, _size(new) / _size(old))
        case {"type": "Replace", "pattern": {"Regex": regex}, "content": str(new)}:
            return max(1, _size(new)) if is_known(regex) else inf
        case {"type": "Prepend", "prepend": str(new)}:
            return 1 + _size(new)
        case {"type": "ByteLevel"}:
            return 4 if part.get("add_prefix_space", True) else 2
        case {"type": "Metaspace"}:
            return 5
    return inf


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
