"""Modes get the same requests in turn, a text that differs is caught, and ratios are of the same repeat."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

import pytest

from forerun.bench.latency import Answer
from forerun.bench.serving import BUILT_IN, Cell, Mode, Schedule, Wanted, cells_of, laps
from forerun.bench.serving_table import Ratio, tabulate
from forerun.bench.streams import Address
from forerun.cli.prompts import first_turns
from forerun.errors import ForerunError
from forerun.server import Key
from tests.serving import serving, toy


class Spoken:
    """A contender whose answers take two seconds, and hold the seed four times."""

    def __init__(
        self, name: str, log: list[tuple[str, Sequence[Wanted], Schedule]], failure: str | None = None
    ) -> None:
        self.name, self.compared = name, name != "peer"
        self._log, self._failure = log, failure

    def run(self, requests: Sequence[Wanted], schedule: Schedule) -> list[Answer]:
        self._log.append((self.name, requests, schedule))
        if self._failure is not None:
            return [Answer(0.0, 0.0, failure=self._failure) for _ in requests]
        return [Answer(0.0, 0.0, (1.0, 2.0), (wanted.seed,) * 4) for wanted in requests]


def run(*contenders: Spoken, **options: Any) -> list[Cell]:
    chosen: dict[str, Any] = {"levels": [1, 3], "repeats": 2, "per_stream": 3, "closed": False, "seed": 5}
    return list(cells_of(contenders, ["a", "b", "c"], **chosen | options))


def test_every_mode_gets_the_same_requests_in_turn() -> None:
    log: list[tuple[str, Sequence[Wanted], Schedule]] = []
    cells = run(Spoken("off", log), Spoken("on", log), Spoken("auto", log))
    assert [name for name, _, _ in log[:3]] == ["off", "on", "auto"]  # the warm-up
    assert [(name, schedule.times) for name, _, schedule in log[3:5]] == [("off", None)] * 2  # what tells the rates
    assert [(cell.repeat, cell.streams, cell.mode) for cell in cells] == [
        *((0, 1, "off"), (0, 1, "on"), (0, 1, "auto"), (0, 3, "on"), (0, 3, "auto"), (0, 3, "off")),
        *((1, 1, "on"), (1, 1, "auto"), (1, 1, "off"), (1, 3, "auto"), (1, 3, "off"), (1, 3, "on")),
    ]
    for at in range(5, len(log), 3):
        turn = log[at : at + 3]
        assert len({tuple(requests) for _, requests, _ in turn}) == 1
        assert len({tuple(schedule.times or ()) for _, _, schedule in turn}) == 1
    assert [len(requests) for _, requests, _ in log[5::3]] == [8, 9, 8, 9]
    asked = [wanted for name, requests, _ in log if name == "off" for wanted in requests]
    assert [wanted.seed for wanted in asked] == list(range(5, 5 + len(asked)))
    # Answers take 2 s, so that one arrival a second keeps two live.
    assert [cell.rate for cell in cells[::3]] == [0.5, 1.5, 0.5, 1.5]
    assert max(wanted.lap for wanted in asked) + 1 == laps(3, [1, 3], 2, 3, closed=False)


def test_a_closed_loop_has_no_rate() -> None:
    log: list[tuple[str, Sequence[Wanted], Schedule]] = []
    cells = run(Spoken("off", log), closed=True)
    assert {cell.rate for cell in cells} == {None}
    assert [schedule for _, _, schedule in log[1:3]] == [Schedule(1), Schedule(3)]
    assert max(wanted.lap for _, requests, _ in log for wanted in requests) + 1 == laps(3, [1, 3], 2, 3, closed=True)


def test_nothing_is_measured_where_the_warm_up_fails() -> None:
    with pytest.raises(ForerunError, match="the warm-up of on failed: status 500"):
        run(Spoken("off", []), Spoken("on", [], failure="status 500"))
    with pytest.raises(ForerunError, match="there are no prompts"):
        list(cells_of([Spoken("off", [])], [], levels=[1], repeats=1, per_stream=1, closed=True))


def cell(mode: str, repeat: int, seconds: float, text: int = 1, **more: Any) -> Cell:
    """Two answers of 10 tokens, each `seconds` long, in a closed loop."""
    answers = [Answer(0.0, 0.0, (seconds / 2, seconds), (text,) * 10) for _ in range(2)]
    return Cell(mode, mode != "peer", 2, repeat, None, answers, seconds, 0.0, math.nan, **more)


def test_ratios_are_of_the_same_repeat() -> None:
    seconds = {"off": (2.0, 4.0, 8.0), "on": (1.0, 4.0, 6.0), "auto": (1.0, 2.0, 4.0), "peer": (4.0, 8.0, 16.0)}
    rows = {
        row.mode: row
        for row in tabulate(
            [cell(mode, repeat, taken) for mode, found in seconds.items() for repeat, taken in enumerate(found)],
            {"e2el": 4.0},
        )
    }
    assert list(rows) == ["off", "on", "auto", "peer"]
    assert [rows[mode].off.median for mode in rows] == [1.0, pytest.approx(8 / 6), 2.0, 0.5]
    # The better of off and on is on.
    assert rows["auto"].best.median == pytest.approx(1.5)
    assert rows["on"].best == Ratio(1.0, 1.0, 1.0)
    assert rows["auto"].tokens_per_second == 10.0
    assert rows["off"].good == pytest.approx((4 / 14, 4 / 6))
    assert rows["off"].live == 2.0
    assert (rows["auto"].compared, rows["peer"].compared) == (6, 0)
    assert all(row.sound for row in rows.values())
    json.dumps([row.as_dict() for row in rows.values()])


def test_another_text_is_caught_and_its_repeat_not_timed() -> None:
    cells = [cell("off", 0, 2.0), cell("on", 0, 1.0, text=9), cell("off", 1, 2.0), cell("on", 1, 4.0)]
    on = tabulate(cells, {})[1]
    assert (on.compared, on.different, on.sound) == (4, 2, False)
    assert on.off.median == 0.5
    assert on.tokens_per_second == 5.0
    everything = tabulate([cell("off", 0, 2.0), cell("on", 0, 1.0, text=9)], {})[1]
    assert math.isnan(everything.off.median)
    assert math.isnan(everything.tokens_per_second)


def test_a_peer_writes_texts_of_its_own() -> None:
    peer = tabulate([cell("off", 0, 2.0), cell("peer", 0, 4.0, text=9)], {})[1]
    assert (peer.compared, peer.different, peer.off.median) == (0, 0, 0.5)


def test_failures_are_counted_and_not_compared() -> None:
    broken = cell("on", 0, 1.0)
    answers = [broken.answers[0], Answer(0.0, 0.0, failure="status 503")]
    broken = dataclasses.replace(broken, answers=answers)
    off, on = tabulate([cell("off", 0, 2.0), broken], {"ttft": 9.0})
    assert (on.failures, on.requests, on.compared, on.different) == ({"status 503": 1}, 2, 1, 0)
    assert not on.sound
    assert on.good == (1.0, 0.5)
    assert off.good == (1.0, 1.0)
    assert on.tokens_per_second == 10.0
    assert [line["failure"] for line in broken.lines()] == [None, "status 503"]


def test_in_an_open_loop_ratios_are_of_seconds_of_the_answers() -> None:
    opened = [
        dataclasses.replace(cell(mode, 0, taken), rate=1.0, seconds=10.0) for mode, taken in [("off", 2), ("on", 1)]
    ]
    off, on = tabulate(opened, {})
    assert off.tokens_per_second == on.tokens_per_second == 2.0
    assert on.off.median == 2.0


def test_ratios_of_few_repeats_have_no_interval() -> None:
    assert math.isnan(Ratio.of([1.0, 2.0]).low)
    found = Ratio.of([1.0, 1.1, 1.2, 1.3, 1.4])
    assert 1.0 <= found.low < found.median == 1.2 < found.high <= 1.4


def test_modes_ask_a_server_with_the_key_of_the_lap() -> None:
    with toy() as llm, serving(llm, keys=(Key.of("first"), Key.of("second"))) as client:
        address = Address("127.0.0.1", int(client.base_url.port or 0))
        body = {"max_tokens": 6, "temperature": 0.8}
        off = Mode("off", address, ["first", "second"], body | {"speculation": {"enabled": False}})
        auto = Mode("auto", address, ["first", "wrong"], body | {"speculation": {"enabled": True}})
        wanted = [Wanted("the drafter", 3), Wanted("what the", 4), Wanted("the drafter", 5, lap=1)]
        plain, fast = off.run(wanted, Schedule(2)), auto.run(wanted, Schedule(3, [0.0, 0.01, 0.02]))
        assert [answer.failure for answer in plain] == [None] * 3
        assert [answer.failure for answer in fast] == [None, None, "status 401"]
        assert [answer.token_ids for answer in fast[:2]] == [answer.token_ids for answer in plain[:2]]
        assert fast[1].due - fast[0].due == pytest.approx(0.01)
        assert (
            len(off.tokens("the drafter")) == llm.chat([{"role": "user", "content": "the drafter"}]).usage.prompt_tokens
        )


def test_the_built_in_prompts_are_of_several_kinds() -> None:
    found = first_turns(BUILT_IN)
    assert len({text for text, _ in found}) == len(found) == 24
    assert len({question.labels["category"] for _, question in found}) == 9
