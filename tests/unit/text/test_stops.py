"""Stop strings are cut exactly, however the text is cut into tokens."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forerun.errors import SamplingError
from forerun.text.stops import StopScanner

LETTERS = st.text(alphabet="ab", max_size=12)


def cut(text: str, stops: list[str]) -> tuple[str, str | None]:
    """By the definition: the first end of a stop string, of several the longest."""
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            found = max(ended, key=len)
            return text[: end - len(found)], found
    return text, None


@given(st.lists(LETTERS, max_size=12), st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=4))
@example(["a", "", "b", "b"], ["abb"])
@example(["aab", "ab"], ["abab", "b" * 9])
def test_any_cut_into_tokens_gives_the_same(tokens: list[str], stops: list[str]) -> None:
    scanner, shown = StopScanner(stops), ""
    expected, found = cut("".join(tokens), stops)
    for i, token in enumerate(tokens):
        shown += scanner.push(token)
        assert expected.startswith(shown)
        assert scanner.stopped == (cut("".join(tokens[: i + 1]), stops)[1] is not None)
        if not scanner.stopped:
            held = "".join(tokens[: i + 1])[len(shown) :]
            assert not held or any(stop.startswith(held) for stop in stops)
    shown += scanner.finish()
    assert (shown, scanner.found) == (expected, found)


def test_text_is_held_back_only_while_it_may_begin_a_stop_string() -> None:
    scanner = StopScanner(["\nUser:", "###"])
    assert scanner.push("Hello.") == "Hello."
    assert scanner.push("\nUs") == ""
    assert scanner.push("ed #") == "\nUsed "
    assert scanner.push("#") == ""
    assert not scanner.stopped
    assert scanner.push("# more") == ""
    assert scanner.stopped
    assert scanner.found == "###"
    assert scanner.push("and more") == ""
    assert scanner.finish() == ""


def test_what_was_held_back_comes_in_the_end() -> None:
    scanner = StopScanner(["stop"])
    assert scanner.push("st") == ""
    assert scanner.finish() == "st"
    assert not scanner.stopped


def test_without_stop_strings_nothing_is_held() -> None:
    scanner = StopScanner([])
    assert scanner.push("abc") == "abc"
    assert scanner.finish() == ""


@pytest.mark.parametrize("stops", [[""], ["a", ""], "stop", [1]])
def test_stop_strings_are_strings_that_are_not_empty(stops: list[str]) -> None:
    with pytest.raises(SamplingError, match="stop strings"):
        StopScanner(stops)
