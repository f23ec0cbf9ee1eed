"""Passes are timed in turn, by medians, after a first one that does not count."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from forerun.assembly.models import find_model
from forerun.backends.toy import ToyModel
from forerun.bench.passes import Ours, PassTable, measure_passes
from forerun.config import Config
from forerun.core.model import Model

TEXT = list(range(40))


class Clock:
    """Time that passes only when an engine works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[tuple[str, int]] = []

    def __call__(self) -> float:
        return self.now


class Engine:
    """Takes what `cost` says for a pass; the n-th pass of a size takes longer by what is in `extra`."""

    def __init__(self, name: str, clock: Clock, cost: float, extra: Sequence[float] = ()) -> None:
        self.name, self._clock, self._cost, self._extra = name, clock, cost, list(extra)

    def read(self, tokens: Sequence[int]) -> None:
        assert list(tokens) == TEXT[:10]
        self._clock.now += 2.0

    def rows(self, tokens: Sequence[int]) -> None:
        assert list(tokens) == TEXT[10 : 10 + len(tokens)]
        self._clock.log.append((self.name, len(tokens)))
        self._clock.now += self._cost * len(tokens) + (self._extra.pop(0) if self._extra else 0.0)

    def close(self) -> None:
        pass


def test_each_size_of_each_engine_in_turn() -> None:
    clock = Clock()
    engines = [Engine("a", clock, 1.0), Engine("b", clock, 3.0)]
    one, other = measure_passes(engines, [4, 2], text=TEXT, context=10, repeats=2, clock=clock)
    assert (one.engine, one.context, one.repeats) == ("a", 10, 2)
    assert one.seconds == {1: 1.0, 2: 2.0, 4: 4.0}
    assert other.seconds == {1: 3.0, 2: 6.0, 4: 12.0}
    assert (one.v(4), one.prefill) == (4.0, 5.0)
    assert one.as_dict()["v"] == {1: 1.0, 2: 2.0, 4: 4.0}
    # Who goes first changes, so that a machine which slows down slows both alike.
    assert clock.log == [(name, rows) for order in ("ab", "ba", "ab") for rows in (1, 2, 4) for name in order]


def test_the_first_does_not_count_and_one_slow_pass_changes_nothing() -> None:
    clock = Clock()
    [table] = measure_passes(
        [Engine("a", clock, 1.0, [100.0, 0.0, 50.0])], [1], text=TEXT, context=10, repeats=5, clock=clock
    )
    assert table.seconds == {1: 1.0}


def test_the_text_is_long_enough() -> None:
    clock = Clock()
    with pytest.raises(AssertionError, match="the text is shorter"):
        measure_passes([Engine("a", clock, 1.0)], [31], text=TEXT, context=10, clock=clock)


def test_without_a_pass_of_one_row_there_is_no_ratio() -> None:
    assert PassTable("a", 1, 1, {2: 1.0}).as_dict()["v"] == {}


def test_a_model_of_ours_is_left_as_it_was() -> None:
    model: Model = find_model("toy", Config()).model
    assert isinstance(model, ToyModel)
    ours = Ours(model, chunk=3)
    ours.read(TEXT[:10])
    assert ours._kv is not None
    for size in (1, 4):
        ours.rows(TEXT[10 : 10 + size])
        assert ours._kv.length == 10
    before = ours._kv
    ours.read(TEXT[:5])
    assert ours._kv is not before
    assert ours._kv.length == 5
    ours.close()
    ours.close()
