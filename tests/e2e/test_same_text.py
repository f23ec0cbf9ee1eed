"""The promise, on real models: token ids with speculation are those without it, bit for bit, alone and in company."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forerun import LLM, Completion
from forerun.controllers.fixed import Fixed
from forerun.drafters.model import ModelDrafter
from forerun.engine import Engine
from forerun.verifiers.keyed import Keyed

pytestmark = pytest.mark.models

FILE = Path(__file__).parents[1] / "data" / "prompts.jsonl"
PROMPTS = {row["id"]: row["turns"][0] for row in map(json.loads, FILE.read_text("utf-8").splitlines())}
SAMPLINGS = pytest.mark.parametrize(
    "sampling", [{"temperature": 0.0, "seed": 0}, {"temperature": 0.8, "seed": 1234}], ids=["greedy", "sampled"]
)


@contextmanager
def loaded(model: str, draft: str, nodes: int | None = None) -> Iterator[tuple[LLM, LLM]]:
    """One loaded target twice: with its drafter, and decoding plainly.

    nodes: drafted in every step; None leaves it to the controller, which drafts what pays by the measured costs.
    """
    with LLM.load(model, draft=draft, num_speculative_tokens=nodes) as drafting:
        parts = drafting.assembly
        engine = Engine(parts.engine.target, {}, [Keyed()], Fixed(0))
        yield drafting, LLM(replace(parts, engine=engine, draft="none"))


def check(llms: tuple[LLM, LLM], prompts: list[str], together: int, options: dict[str, Any]) -> int:
    """Exact equality of token ids, alone and `together` at a time. Gives how many drafted tokens were accepted."""
    drafting, plain = llms
    expected = ids(plain.generate_all(prompts, concurrency=1, **options))
    assert len(expected) == len(prompts)
    assert all(expected)
    accepted = 0
    for concurrency in (1, together):
        answers = list(drafting.generate_all(prompts, concurrency=concurrency, **options))
        assert ids(answers) == expected
        accepted += sum(answer.stats.accepted for answer in answers)
    return accepted


def ids(answers: Iterator[Completion] | list[Completion]) -> list[list[int]]:
    return [answer.token_ids for answer in answers]


@pytest.fixture(scope="module")
def smollm2() -> Iterator[tuple[LLM, LLM]]:
    with loaded("smollm2-135m", "ngram", 7) as llms:
        yield llms


@SAMPLINGS
def test_smollm2_with_ngram_on_every_category(smollm2: tuple[LLM, LLM], sampling: dict[str, Any]) -> None:
    assert check(smollm2, list(PROMPTS.values()), 8, {"max_tokens": 48, **sampling}) > 0


def test_smollm2_with_auto_and_measured_costs() -> None:
    """Lengths that change with the clock, from several drafters: still the same text."""
    with loaded("smollm2-135m", "auto") as llms:
        check(llms, list(PROMPTS.values())[:4], 4, {"max_tokens": 32, "temperature": 0.8, "seed": 5})


@pytest.fixture(scope="module")
def qwen_pair() -> Iterator[tuple[LLM, LLM]]:
    with loaded("qwen2.5-coder-1.5b", "model:qwen2.5-coder-0.5b", 4) as llms:
        yield llms


@SAMPLINGS
def test_the_qwen_pair_on_a_sample(qwen_pair: tuple[LLM, LLM], sampling: dict[str, Any]) -> None:
    assert check(qwen_pair, [PROMPTS["qa"], PROMPTS["translation"]], 2, {"max_tokens": 12, **sampling}) > 0


@pytest.mark.parametrize(
    ("model", "draft", "note"),
    [
        ("smollm2-135m", "self:int4", ""),
        ("smollm2-135m", "self:exit=12@w8@head=8k", ""),
        ("smollm2-135m", "model:qwen2.5-coder-0.5b@w4", "among the shared tokens (TLI)"),
        ("qwen2.5-coder-0.5b", "model:smollm2-135m", "as text that is read again (SLEM)"),
        ("qwen2.5-coder-0.5b", "self:int4@head=16k<suffix", ""),
    ],
)
def test_copies_and_strangers_as_draft_models(model: str, draft: str, note: str) -> None:
    with loaded(model, draft, 4) as llms:
        assert llms[0].assembly.draft == draft
        assert note in "".join(llms[0].assembly.notes)
        assert len(llms[0].assembly.notes) == bool(note)
        accepted = 0
        for sampling in ({"temperature": 0.0}, {"temperature": 0.8, "seed": 7}):
            accepted += check(llms, [PROMPTS["qa"], PROMPTS["coding"]], 2, {"max_tokens": 16, **sampling})
        assert accepted > 0


@pytest.mark.parametrize(
    ("draft", "cascade", "borrows"),
    [
        ("self:int4", None, True),
        ("self:exit=12", None, True),
        # A draft model's distributions are part of a cascade's text, so they must not depend on where a step began.
        ("self:int4", "v3:0.5", False),
        ("model:smollm2-135m", None, False),
    ],
)
def test_which_drafters_go_on_from_the_targets_own_keys(draft: str, cascade: str | None, borrows: bool) -> None:
    with LLM.load("smollm2-135m", draft=draft, cascade=cascade, num_speculative_tokens=3) as llm:
        (method,) = llm.assembly.engine.speculator.methods.values()
        assert isinstance(method.model, ModelDrafter)
        assert (method.model.source.borrower is not None) == borrows
        twice = [llm.generate(PROMPTS["qa"], max_tokens=12, temperature=0.8, seed=3).token_ids for _ in range(2)]
        assert twice[0] == twice[1]
