"""Errors are one line that a terminal shows and does not obey."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import LONGEST, ForerunError, ModelFileError, PromptError, UsageError, one_line, unknown


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("several\n  lines\r\nof a library", "several lines of a library"),
        ("\x1b[2J\x1b]0;title\x07 gone", r"\x1b[2J\x1b]0;title\x07 gone"),
        ("bell \x07, C1 \x9b31m, delete \x7f", r"bell \x07, C1 \x9b31m, delete \x7f"),
        ("a\tb", "a b"),
        ("fdp.\u202efugg", r"fdp.\u202efugg"),
        ("a\rb\x0bc\x85d\u2028e", "a b c d e"),
        ("bad name \udc80", r"bad name \udc80"),
        ("naïve 日本語 😀", "naïve 日本語 😀"),
    ],
)
def test_what_is_quoted_is_shown(given: str, shown: str) -> None:
    assert str(ForerunError(given)) == str(ModelFileError(given)) == one_line(given) == shown


@given(st.text(alphabet=st.characters(codec=None)))
def test_nothing_but_printable_characters_gets_through(text: str) -> None:
    shown = str(PromptError(text))
    assert shown.isprintable()
    shown.encode()


def test_a_hostile_quotation_leaves_room_for_the_advice() -> None:
    for hostile in ("x", "\x1b"):
        shown = str(ModelFileError(f"model.gguf: {hostile * 1_000_000}: download it again"))
        assert len(shown) <= LONGEST + 6
        assert shown.startswith(f"model.gguf: {one_line(hostile) * 3}")
        assert shown.endswith(f"{one_line(hostile) * 3}: download it again")


def test_an_unknown_name_is_compared_without_its_case() -> None:
    known = ("system", "user", "assistant")
    assert str(unknown("role", "USER", known)) == (
        "unknown role 'USER'; known: system, user, assistant. Did you mean user?"
    )
    assert str(unknown("role", "Asistant", known)).endswith(" Did you mean assistant?")
    error = unknown("role", "narrator", known, ("a list",))
    assert str(error) == "unknown role 'narrator'; known: a list."
    assert isinstance(error, UsageError)
