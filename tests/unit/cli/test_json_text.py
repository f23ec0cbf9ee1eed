"""JSON in and out: one short reason for whatever cannot be read, and valid JSON for whatever is written."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from forerun.cli.json_text import dump, parse


@pytest.mark.parametrize("text", ['{"a": [1, 2.5, "x", null, true]}', "3", '"x"', '"\\ud83d"', "1e308", "-0.0"])
def test_what_is_json_is_read(text: str) -> None:
    assert parse(text) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("NaN", "NaN is not a JSON value"),
        ("[-Infinity]", "-Infinity is not a JSON value"),
        ("[1e999]", "the number 1e999 is too large"),
        ("-1" + "0" * 400 + ".0", "is too large"),
        ("9" * 5000, "a number of 5,000 digits"),
        ('{"a": 1, "b": 2, "a": 3}', "the key 'a' stands there twice"),
        ('[{"x": {"y": 1, "y": 1}}]', "the key 'y' stands there twice"),
        ("[" * 101 + "]" * 101, "nested more than 100 deep"),
        ("[" * 100_000, "nested more than 100 deep"),
        ('{"a":' * 100_000, "nested more than 100 deep"),
        ("", "Expecting value at column 1"),
        ('{"a": "no end', "Unterminated string starting at column 7"),
        ('{"a": 1,\n  b}', "property name enclosed in double quotes at line 2, column 3"),
    ],
    ids=lambda text: text[:30],
)
def test_what_is_not_is_said_in_a_few_words(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        parse(text)
    assert len(str(caught.value)) < 100


def test_values_may_be_nested_a_hundred_deep() -> None:
    assert dump(parse("[" * 100 + "]" * 100)) == "[" * 100 + "]" * 100


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"a": math.nan, "b": [math.inf, (-math.inf, 1.5)]}, '{"a": null, "b": [null, [null, 1.5]]}'),
        ({"id": "\ud83d", "text": "é"}, '{"id": "\\ud83d", "text": "\\u00e9"}'),
        ({"id": "\ud83d", "b": math.nan}, '{"id": "\\ud83d", "b": null}'),
        ({"text": "é"}, '{"text": "é"}'),
    ],
    ids=str,
)
def test_what_is_written_is_json(data: Any, text: str) -> None:
    assert dump(data) == text
    assert parse(text) is not None
    text.encode()


def test_ascii_where_it_is_asked_for() -> None:
    assert dump("é", ascii_only=True) == '"\\u00e9"'
