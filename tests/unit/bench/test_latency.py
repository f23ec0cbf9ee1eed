"""What a client sees of an answer, computed by hand, and what counts as good."""

from __future__ import annotations

import math

import pytest

from forerun.bench.latency import DEFINITIONS, Answer, parse_slo, percentiles, values
from forerun.errors import UsageError

# Sent at 10, a token at 10.5, two together at 11, and one at 12.
ANSWER = Answer(due=9.0, sent=10.0, chunks=(10.5, 11.0, 11.0, 12.0), token_ids=(4, 5, 6, 7))
SINGLE = Answer(0.0, 0.0, (1.0,), (4,))
FAILED = Answer(0.0, 0.0, failure="status 503")


def test_times_are_counted_from_sending() -> None:
    assert (ANSWER.ttft, ANSWER.e2el) == (0.5, 2.0)
    assert ANSWER.tpot == pytest.approx(1.5 / 3)
    assert ANSWER.itl == [0.5, 0.0, 1.0]


def test_a_single_token_has_no_time_after_it() -> None:
    assert SINGLE.tpot is None
    assert SINGLE.itl == []


def test_values_leave_out_what_is_not_there() -> None:
    answers = [ANSWER, SINGLE, FAILED]
    assert values(answers, "ttft") == [0.5, 1.0]
    assert values(answers, "tpot") == [0.5]
    assert values(answers, "itl") == [0.5, 0.0, 1.0]
    assert all(values(answers, metric) for metric in DEFINITIONS)


def test_percentiles() -> None:
    assert percentiles([float(n) for n in range(101)]) == {"p50": 50.0, "p90": 90.0, "p99": 99.0}
    assert all(map(math.isnan, percentiles([]).values()))


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        ({}, True),
        ({"ttft": 0.5, "tpot": 0.5, "e2el": 2.0}, True),
        ({"ttft": 0.49}, False),
        ({"tpot": 0.49}, False),
        ({"e2el": 1.9}, False),
    ],
)
def test_an_answer_is_good_within_every_bound(slo: dict[str, float], good: bool) -> None:
    assert ANSWER.meets(slo) is good
    assert not FAILED.meets(slo)


def test_a_bound_on_the_time_after_a_single_token_is_met() -> None:
    assert SINGLE.meets({"tpot": 1e-9})


def test_bounds_as_they_are_written() -> None:
    assert parse_slo("ttft:500ms, tpot:0.1s,") == pytest.approx({"ttft": 0.5, "tpot": 0.1})
    assert parse_slo("") == {}


@pytest.mark.parametrize(
    "text", ["ttft", "ttft:5", "ttft:xms", "ttft:-5ms", "ttft:0s", "itl:5ms", "ttft:infs", "ttft:nans"]
)
def test_bounds_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match=f"--slo has .*{text}"):
        parse_slo(text)
