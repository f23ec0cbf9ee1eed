"""Values of a model file are checked as they are read, and what is wrong with one names it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forerun.errors import ModelFileError, quoted
from forerun.weights.fields import LARGEST, Fields


def of(value: Any) -> Fields:
    return Fields(Path("model"), {"key": value})


ABSENT = Fields(Path("model"), {})


@pytest.mark.parametrize("value", [1, 7, LARGEST])
def test_whole_numbers(value: int) -> None:
    assert of(value).integer("key") == value


@pytest.mark.parametrize("value", [0, -1, LARGEST + 1, 10**4000, True, 1.0, "1", [1]], ids=quoted)
def test_what_is_no_whole_number(value: Any) -> None:
    with pytest.raises(
        ModelFileError, match=r"model: key is .*, not a whole number of at least 1: the file is damaged"
    ):
        of(value).integer("key")


def test_the_least_may_be_another() -> None:
    assert of(0).integer("key", least=0) == 0
    with pytest.raises(ModelFileError, match="at least 5"):
        of(4).integer("key", least=5)


@pytest.mark.parametrize("value", [0.5, 3, 1e300])
def test_numbers(value: float) -> None:
    assert of(value).number("key") == of(value).maybe_number("key") == float(value)


@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan, 10**400, False, "0.5"], ids=quoted)
def test_what_is_no_number(value: Any) -> None:
    with pytest.raises(ModelFileError, match="not a number above zero"):
        of(value).number("key")


def test_texts_flags_and_what_is_inside() -> None:
    assert of("x").text("key") == "x"
    assert of(False).flag("key", True) is False
    assert of({"a": 3}).inner("key").integer("a") == 3
    assert of(None).inner("key").values == {}
    reads: list[Callable[[Fields, str], Any]] = [Fields.text, lambda fields, key: fields.flag(key, True), Fields.inner]
    for read in reads:
        with pytest.raises(ModelFileError, match="key is '3'"):
            read(of(3), "key")


@pytest.mark.parametrize(
    ("read", "default"),
    [
        (lambda fields: fields.integer("key", 4), 4),
        (lambda fields: fields.number("key", 0.5), 0.5),
        (lambda fields: fields.maybe_number("key"), None),
        (lambda fields: fields.text("key", "d"), "d"),
        (lambda fields: fields.flag("key", True), True),
    ],
)
def test_null_is_absent(read: Callable[[Fields], Any], default: Any) -> None:
    assert read(ABSENT) == read(of(None)) == default
    assert not ABSENT.has("key")
    assert not of(None).has("key")


def test_what_must_be_there() -> None:
    for read in (Fields.integer, Fields.number, Fields.text):
        with pytest.raises(ModelFileError, match="model: key is missing: the file is incomplete"):
            read(ABSENT, "key")
