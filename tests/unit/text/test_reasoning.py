"""Thinking and content: the same split whatever pieces the text comes in, and tokens counted by where they begin."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.text.reasoning import Phase, ReasoningParser, Tags, Thought
from forerun.tokenizers.engine import LocalEngine
from forerun.tokenizers.tokenizer import Tokenizer, Vocabulary, byte_alphabet, byte_tokenizer

# text, whether it starts inside, thinking, content.
CASES = [
    ("", False, "", ""),
    ("Hello", False, "", "Hello"),
    ("<think>a\nb</think>\n\nHi", False, "a\nb", "\n\nHi"),
    (" \n<think>é😀</think>Hi", False, "é😀", " \nHi"),
    ("<think></think>", False, "", ""),
    ("<think>a</thin</think>b</think>c<think>d", False, "a</thin", "b</think>c<think>d"),
    ("<think>never closed </thi", False, "never closed </thi", ""),
    ("<thin", False, "", "<thin"),
    ("<thinker>a</think>", False, "", "<thinker>a</think>"),
    ("say <think>a</think>", False, "", "say <think>a</think>"),
    ("a<</think>b", True, "a<", "b"),
    ("</think>b", True, "", "b"),
    ("a", True, "a", ""),
    ("\ud7ff</think\u3042></think> ", True, "\ud7ff</think\u3042>", " "),
]


def tokenizer_of(words: list[str], control: frozenset[int] = frozenset()) -> Tokenizer:
    """A tokenizer of these tokens; it only decodes."""
    import tokenizers

    spelled = {byte: char for char, byte in byte_alphabet().items()}
    tokens = ["".join(spelled[bytes([byte])] for byte in word.encode()) for word in words]
    tokens = [word if i in control else token for i, (word, token) in enumerate(zip(words, tokens, strict=True))]
    engine = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={}, merges=[]))
    return Tokenizer(
        LocalEngine(engine), Vocabulary(tokens, control, control, "bytes", frozenset(), None, add_bos=False)
    )


def split(pieces: list[str], inside: bool, tags: Tags | None = None) -> tuple[str, str, int]:
    """Each piece is a token."""
    tokenizer = tokenizer_of(pieces)
    parser = ReasoningParser(tokenizer, *([tags] if tags else []), starts_inside=inside)
    parts = [parser.push(token, piece) for token, piece in enumerate(pieces)]
    parts.append(parser.finish())
    return "".join(part.reasoning for part in parts), "".join(part.content for part in parts), parser.reasoning_tokens


@pytest.mark.parametrize(("text", "inside", "thinking", "content"), CASES)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 16, 100])
def test_the_split_does_not_depend_on_the_pieces(
    text: str, inside: bool, thinking: str, content: str, size: int
) -> None:
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    assert split(pieces, inside)[:2] == (thinking, content)


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "</", "think", ">", " ", "\n", "x", "é"]), max_size=12),
    st.randoms(),
)
def test_random_splits(parts: list[str], rng: random.Random) -> None:
    text = "".join(parts)
    for inside in (False, True):
        whole = split([text], inside)
        cuts = sorted(rng.randrange(len(text) + 1) for _ in range(4))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert split(pieces, inside)[:2] == whole[:2]
        thinking, content, _ = whole
        lead = text[: len(text) - len(text.lstrip(" \n"))]
        tagged = [thinking + content, thinking + "</think>" + content]
        if not inside:
            begun = content.removeprefix(lead) if content.startswith(lead) else content
            tagged = [
                text_
                for c in (begun, content)
                for text_ in (c, lead + c, f"{lead}<think>{thinking}</think>{c}", f"{lead}<think>{thinking}{c}")
            ]
        assert text in tagged


def test_each_character_is_its_own_count() -> None:
    """With one token a character, every character of thinking is a token, and no character of a tag."""
    for text, inside, thinking, _ in CASES:
        assert split(list(text), inside)[2] == len(thinking)


@pytest.mark.parametrize(
    ("pieces", "inside", "count"),
    [
        (["<think>", "a", "b", "</think>", "c"], False, 2),
        (["<", "think", ">", "a", "</", "think", ">"], False, 1),
        (["<think", ">\n", "a", ".</", "think", ">\n\n", "b"], False, 2),
        (["a", "</", "thin", "x", "</thin"], True, 5),
        (["a", "</", "think", ">"], True, 1),
        (["</think>b"], True, 0),
        (["a</think>b"], True, 1),
        (["<think>a", "b"], False, 1),
        (["<think>a</think>b"], False, 0),
        (["<think>", "", "</", "", "think>"], False, 1),
        (["a", "b"], False, 0),
    ],
)
def test_tokens_count_where_they_begin(pieces: list[str], inside: bool, count: int) -> None:
    assert split(pieces, inside)[2] == count


def test_tags_that_are_control_tokens_leave_no_text_of_their_own() -> None:
    words = ["<think>", "a", "</think>", "b", "<|im_end|>"]
    parser = ReasoningParser(tokenizer_of(words, frozenset({0, 2, 4})))
    parts = [parser.push(token, "" if token in (0, 2, 4) else words[token]) for token in (0, 1, 1, 2, 3, 4)]
    assert "".join(part.reasoning for part in parts) == "aa"
    assert "".join(part.content for part in parts) == "b"
    assert parser.reasoning_tokens == 2


def test_characters_in_several_tokens_and_text_that_comes_later() -> None:
    tokenizer = byte_tokenizer()
    text = "<think>é</think>ü"
    parser = ReasoningParser(tokenizer)
    pieces = ["", *text.replace("é", "?é")[:-1]]
    ids = list(text.encode())
    parts = [parser.push(token, "") for token in ids]
    parts.append(parser.finish(text))
    assert ("".join(p.reasoning for p in parts), "".join(p.content for p in parts)) == ("é", "ü")
    assert parser.reasoning_tokens == 2
    assert pieces


def test_other_tags() -> None:
    tags = Tags("[THINK]", "[/THINK]")
    assert split(["[TH", "INK]a[", "/THINK]", "b"], False, tags) == ("a", "b", 0)
    assert split(list("aabaac"), True, Tags("x", "aac")) == ("aab", "", 3)
    assert split(["a", "a", "a", "c"], True, Tags("x", "aac")) == ("a", "", 1)


def test_where_a_text_stands() -> None:
    thought = Thought.start()
    assert thought.phase is Phase.BEFORE
    thought, _, space = thought.after(b" <th")
    assert (thought.phase, thought.tail, space) == (Phase.BEFORE, b"<th", b" ")
    assert thought.after(b"x")[0].phase is Phase.NEVER
    thought = thought.after(b"ink>")[0]
    assert thought.phase is Phase.INSIDE
    assert not thought.over
    assert thought.after(b"</think>")[0].over
