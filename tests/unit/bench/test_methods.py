"""The bench counts honestly: text first, the same prompts on both sides, one counter."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

import forerun
from forerun.bench.methods import Row, Run, run_methods, tabulate
from forerun.completion import Completion, Timings, Usage
from forerun.errors import ForerunError

PROMPTS = [("1", "a", "the drafter"), ("2", "b", "what the"), ("3", "a", "passes")]


def methods(**more: Any) -> dict[str, Any]:
    plain, fast = forerun.LLM.load("toy", draft="none"), forerun.LLM.load("toy", draft="ngram")
    return {"none": plain.generate, "ngram": fast.generate} | more


def test_every_prompt_under_every_method_with_the_same_seed() -> None:
    runs = list(run_methods(methods(), PROMPTS, max_tokens=30, temperature=0.8, seed=4))
    assert [(run.prompt, run.method) for run in runs] == [(p, m) for p, _, _ in PROMPTS for m in ("none", "ngram")]
    assert all(run.same for run in runs)
    assert [run.completion.seed for run in runs] == [4, 4, 5, 5, 6, 6]
    rows = {(row.category, row.method): row for row in tabulate(runs)}
    assert rows["a", "ngram"].prompts == 2
    assert rows["all", "ngram"].prompts == 3
    assert rows["all", "none"].decode_ratio == 1.0
    assert rows["all", "ngram"].tokens == rows["all", "none"].tokens
    assert sum(rows["all", "ngram"].shares()) == pytest.approx(1.0)
    json.dumps([run.as_dict() for run in runs] + [row.as_dict() for row in rows.values()])


def test_a_method_with_another_text_is_caught_and_not_timed() -> None:
    honest = methods()

    def cheat(prompt: Any, **options: Any) -> Completion:
        done: Completion = honest["ngram"](prompt, **options)
        return dataclasses.replace(done, token_ids=[*done.token_ids[:-1], 0])

    runs = list(run_methods(honest | {"cheat": cheat}, PROMPTS, max_tokens=20))
    assert [run.same for run in runs if run.method == "cheat"] == [False] * 3
    row = next(row for row in tabulate(runs) if row.method == "cheat" and row.category == "all")
    assert (row.different, row.tokens, row.decode_s) == (3, 0, 0.0)


def test_ratios_are_of_the_seconds_of_the_same_prompts() -> None:
    def run(method: str, ttft: float, decode: float) -> Run:
        done = Completion(
            "", [1], "length", Usage(1, 1), "m", method, "keyed", "toy", 0, Timings(ttft_s=ttft, decode_s=decode)
        )
        return Run("p", "c", method, True, done)

    row = Row("fast", "c")
    row.add(run("fast", 1.0, 1.0), run("none", 1.0, 3.0))
    row.add(run("fast", 1.0, 2.0), run("none", 1.0, 1.0))
    assert row.decode_ratio == pytest.approx(4 / 3)
    assert row.mean_ratio == pytest.approx((3 + 0.5) / 2)
    assert row.whole_ratio == pytest.approx(6 / 5)


def test_nothing_to_compare_is_an_error() -> None:
    with pytest.raises(ForerunError, match="none"):
        list(run_methods({"ngram": methods()["ngram"]}, PROMPTS))
    with pytest.raises(ForerunError, match="no prompts"):
        list(run_methods(methods(), []))
