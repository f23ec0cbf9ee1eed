"""The text of a request, and the same text again after a fault."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forerun.text.stream import TextStream
from forerun.tokenizers.tokenizer import byte_tokenizer

BYTES = byte_tokenizer()
END = 256


def stream(*stops: str) -> TextStream:
    return TextStream(BYTES, stops, frozenset({END}))


def test_pieces_come_one_per_token_and_what_is_held_back_with_the_last() -> None:
    text = stream("stop")
    assert [text.push(token) for token in b"as"] == [False, False]
    assert text.take() == ["a", ""]
    assert text.take() == []
    assert text.text == "a"
    text.push(END)
    text.finish()
    assert text.text == "as"
    assert text.take() == ["s"]
    text.finish()
    assert text.take() == []
    assert text.text == "as"


def test_what_is_released_in_the_end_belongs_to_a_token_already_taken() -> None:
    text = stream("stop")
    text.push(ord("s"))
    assert text.take() == [""]
    text.finish()
    assert text.take() == ["s"]


def test_a_stop_string_over_several_tokens_ends_the_replay_where_it_ended_the_text() -> None:
    tokens = list(b"say stop and more")
    text = stream("stop")
    for token in tokens[:6]:
        assert not text.push(token)
    assert "".join(text.take()) == "say "
    assert text.replay(tokens) == 7
    assert text.take() == [""] * (len(tokens) - 6)
    text.finish()
    assert text.text == "say "
    assert text.take() == []


def test_half_a_character_is_completed_after_a_replay() -> None:
    smile = list("😀".encode())
    text = stream()
    for token in smile[:2]:
        text.push(token)
    assert text.take() == ["", ""]
    assert text.replay(smile[:3]) is None
    assert text.take() == [""]
    assert not text.push(smile[3])
    assert text.take() == ["😀"]
    assert text.text == "😀"


def test_tokens_that_were_taken_back_are_not_shown_again() -> None:
    text = stream()
    for token in b"abcd":
        text.push(token)
    assert text.take() == ["a", "b", "c", "d"]
    assert text.replay(list(b"ab")) is None
    assert text.take() == []
    for token in b"cdef":
        text.push(token)
    assert text.take() == ["e", "f"]
    assert text.text == "abcdef"


def test_a_replay_forgets_that_the_text_was_ended() -> None:
    text = stream("b")
    assert text.push(ord("b"))
    text.finish()
    assert text.replay(list(b"a")) is None
    assert not text.push(ord("c"))
    assert text.text == "ac"


@given(st.text(alphabet="ab😀", max_size=8), st.sampled_from([(), ("ab",), ("bb", "😀a")]), st.data())
def test_a_replay_leaves_the_stream_as_if_nothing_had_happened(
    said: str, stops: tuple[str, ...], data: st.DataObject
) -> None:
    tokens = [*said.encode(), END]
    fault = data.draw(st.integers(0, len(tokens)))
    taken = data.draw(st.integers(0, fault))
    undisturbed, disturbed = stream(*stops), stream(*stops)
    stopped = [undisturbed.push(token) for token in tokens]
    pieces = undisturbed.take()
    for token in tokens[:taken]:
        disturbed.push(token)
    assert disturbed.take() == pieces[:taken]
    for token in tokens[taken:fault]:
        disturbed.push(token)
    assert disturbed.replay(tokens) == (stopped.index(True) if any(stopped) else None)
    assert disturbed.take() == pieces[taken:]
    disturbed.finish()
    undisturbed.finish()
    assert disturbed.text == undisturbed.text
    assert disturbed.take() == undisturbed.take()
