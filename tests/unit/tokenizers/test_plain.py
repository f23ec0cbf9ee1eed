"""What runs in this process is known to be quick; everything else is told apart without running it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from forerun.tokenizers.plain import ALTERNATIVES, NEEDED, has_known_regexes, is_known, is_plain
from forerun.tokenizers.pre_tokenizers import PRE_TOKENIZERS

BPE = {"type": "BPE", "vocab": {}, "merges": []}
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
PHI4 = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
DEEPSEEK = (
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)


def described(normalizer: Any = None, pre_tokenizer: Any = None, model: Any = BPE) -> dict[str, Any]:
    return {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "model": model}


def split(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def replace(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def chain(*parts: Any, key: str = "normalizers") -> dict[str, Any]:
    return {"type": "Sequence", key: list(parts)}


LLAMA2 = chain({"type": "Prepend", "prepend": "\u2581"}, replace(" ", "\u2581"))
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


@pytest.mark.parametrize(
    "parts",
    [
        described(),
        described(LLAMA2),
        described(
            replace(" ", "\u2581"), {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"}
        ),
        described(None, {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}),
        described({"type": "NFC"}, chain(split(LLAMA3), BYTES, key="pretokenizers")),
        described({"type": "NFC"}, chain(split(QWEN35), BYTES, key="pretokenizers")),
        described(None, chain(split(O200K), BYTES, key="pretokenizers")),
        described(None, chain(split(PHI4), BYTES, key="pretokenizers")),
        described(
            None, chain(split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK), BYTES, key="pretokenizers")
        ),
        described(None, {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}),
        described(chain(chain()), chain({"type": "Digits", "individual_digits": True}, key="pretokenizers")),
    ],
)
def test_well_known_tokenizers_are_plain(parts: dict[str, Any]) -> None:
    assert is_plain(parts)


@pytest.mark.parametrize(
    "parts",
    [
        described(chain(*[replace("a", "aa")] * 5)),
        described(chain(*[chain(replace("a", "aa"), replace("b", "bb"))] * 3)),
        described(chain(*[{"type": "Prepend", "prepend": "aa"}] * 3)),
        described({"type": "Prepend", "prepend": "a" * 100}),
        described(replace("", "aa")),
        described(replace("a", "b" * 17)),
        described({"type": "Replace", "pattern": {"Regex": r"\s"}, "content": "b" * 17}),
        described({"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}),
        described(None, chain(*[BYTES] * 5, key="pretokenizers")),
        described(None, chain(*[{"type": "Digits"}] * 33, key="pretokenizers")),
        described(chain(*[{"type": "NFC"}] * 33)),
        described(None, split("(a+)+$")),
        described(None, {"type": "Split", "pattern": {"Other": "a"}}),
        described({"type": "Precompiled", "precompiled_charsmap": ""}),
        described({"type": "NoSuchKind"}),
        described({"normalizers": "x"}),
        described("NFC"),
        described(model={"type": "WordPiece", "vocab": {}, "max_input_chars_per_word": 10**9}),
        described(model={"type": "Unigram", "vocab": []}),
        described(model={"vocab": {}}),
        {"model": None},
        {},
    ],
)
def test_others_are_not(parts: dict[str, Any]) -> None:
    assert not is_plain(parts)


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_our_own_expressions_are_known(name: str) -> None:
    assert all(map(is_known, PRE_TOKENIZERS[name].splits))


@pytest.mark.parametrize(
    "regex",
    [
        "",
        "|",
        r"\s+|",
        r"|\s+",
        "(a+)+",
        "(a|a)*b",
        r"\s+(?!\S)x",
        r"(?:\s+)+",
        LLAMA3 + "|(a+)+$",
        "(a+)+$|" + LLAMA3,
        # They read a run in vain, and again from the next place in it.
        r"\s*[\r\n]+",
        r"\p{N}|\s*[\r\n]",
        O200K.split("|[^")[0],
        r"\s+|" * 100_000 + "(a+)+",
        None,
        7,
    ],
)
def test_other_expressions_are_not_known(regex: Any) -> None:
    assert not is_known(regex)


def test_expressions_are_found_wherever_they_are() -> None:
    assert has_known_regexes(None)
    assert has_known_regexes({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"pattern": {"Regex": r"\s+"}}]})
    assert not has_known_regexes({"type": "Sequence", "decoders": [{"pattern": {"Regex": "(a+)+"}}]})
    assert is_known(LLAMA3.replace(r"\r\n", "\r\n"))


@pytest.mark.parametrize("alternative", ALTERNATIVES)
def test_each_alternative_is_valid_and_reads_a_long_text_at_once(alternative: str) -> None:
    """Some fifty thousand characters of each kind: steps that grow with their square would be felt."""
    engine = Tokenizer(models.BPE(vocab={}, merges=[]))
    regex = f"{alternative}|{NEEDED[alternative]}" if alternative in NEEDED else alternative
    engine.pre_tokenizer = pre_tokenizers.Split(Regex(regex), behavior="isolated")
    state = json.loads(engine.to_str())["pre_tokenizer"]
    assert is_plain(described(None, state))
    for text in ("a", "A", "1", " ", "\n", " \n", "'", "!", "文", "a\u0301", "!a"):
        engine.pre_tokenizer.pre_tokenize_str(text * 50_000)
