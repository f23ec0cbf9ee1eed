"""Control tokens are found as one regular expression of all their strings, longest first, would find them."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from forerun.tokenizers.control import ControlStrings


@given(st.text(alphabet="<a|>^]-\\", max_size=30), st.lists(st.text(alphabet="<a|>^]-\\", max_size=4), max_size=6))
@example("<|a|>a", ["<|a", "<|a|>", ""])
@example("]^-\\", ["]", "^", "-", "\\"])
def test_it_splits_as_a_regular_expression_does(text: str, strings: list[str]) -> None:
    longest_first = sorted(set(strings) - {""}, key=lambda string: (-len(string), string))
    pattern = f"({'|'.join(map(re.escape, longest_first))})"
    expected = re.split(pattern, text) if longest_first else [text]
    assert ControlStrings(strings).split(text) == expected


def test_many_strings_cost_no_more_than_few() -> None:
    """One comparison for each of a hundred thousand strings at each of fifty thousand places would be felt."""
    many = ControlStrings(f"<unused{i}>" for i in range(100_000))
    assert many.split("<p>x</p>" * 25_000) == ["<p>x</p>" * 25_000]
    assert many.split("a<unused99999>b") == ["a", "<unused99999>", "b"]
