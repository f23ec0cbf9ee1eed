"""One budget for keys and values, divided so that all models hold texts of the same length."""

from __future__ import annotations

import pytest

from forerun.assembly.memory import divide
from forerun.assembly.models import find_model
from forerun.config import Config
from tests.unit.assembly.found import tiny


def test_each_gets_what_a_token_takes_of_it() -> None:
    target, half, sixth = tiny(layers=3), tiny("half", layers=3, kv_heads=1), tiny("sixth", layers=1, kv_heads=1)
    divide(Config(kv_memory=1000), target, [half, sixth])
    # 6, 3 and 1 heads of keys and values.
    assert [model.kv_memory for model in (target, half, sixth)] == [600, 300, 100]


def test_one_model_under_several_names_counts_once() -> None:
    target, small = tiny(layers=1), tiny("small", layers=1)
    divide(Config(kv_memory=1000), target, [small, small, target])
    assert (target.kv_memory, small.kv_memory) == (500, 500)


def test_a_model_without_weights_takes_nothing() -> None:
    target, toy = tiny(), find_model("toy", Config())
    divide(Config(kv_memory=1000), target, [toy])
    assert (target.kv_memory, toy.kv_memory) == (1000, None)
    divide(Config(kv_memory=1000), toy, [])
    assert toy.kv_memory is None


def test_most_of_what_is_free_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.backends.cpu.options.free_memory", lambda: 10_000)
    target = tiny()
    divide(Config(), target, [])
    assert target.kv_memory == 8_000


def test_no_limit_where_nobody_knows_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.backends.cpu.options.free_memory", lambda: None)
    target = tiny()
    divide(Config(), target, [])
    assert target.kv_memory is None
