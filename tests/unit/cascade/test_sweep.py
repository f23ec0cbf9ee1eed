"""The sweep measures all methods alike: agreement against the target itself, speed of the same tokens, scores."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from forerun.assembly import FoundModel, build
from forerun.backends.toy import ToyModel, random_logits, text_logits
from forerun.cascade.sweep import (
    DRAFTER,
    LOSSLESS,
    PLAIN,
    TARGET,
    Ask,
    Method,
    agreements,
    has_answer,
    methods,
    run_sweep,
    tabulate,
)
from forerun.config import Config
from forerun.core.model import Model
from forerun.errors import UsageError
from forerun.llm import LLM
from forerun.tokenizers.tokenizer import byte_tokenizer

TEXT = "the drafter runs ahead and the target reads what the drafter wrote. the target keeps what it would have said. "
OTHER = "the drafter writes and the target runs. what the target said the drafter would have said ahead of the target. "
ASKS = [Ask("1", "the target ", ("target",)), Ask("2", "what "), Ask("3", "ahead and the dra", ("nothing like it",))]


def source(name: str, text: str, order: int) -> FoundModel:
    tokenizer = byte_tokenizer()
    counted = text_logits([*text.encode()] * 2, tokenizer.vocab_size, order)
    tilt = random_logits(tokenizer.vocab_size, 1, 0.1)

    def logits(path: tuple[int, ...]) -> NDArray[np.float32]:
        without_ties: NDArray[np.float32] = counted(path) + tilt(path)
        return without_ties

    return FoundModel(name, tokenizer, None, lambda kv_memory: ToyModel(tokenizer.vocab_size, order, logits, name=name))


def pair() -> tuple[FoundModel, FoundModel]:
    return source("big", TEXT, 5), source("small", OTHER + TEXT, 3)


def assemble(target: FoundModel, drafter: FoundModel, chosen: Sequence[Method], nodes: int) -> dict[Method, LLM]:
    """One LLM for each method, all on the same two models."""

    def made(method: Method) -> LLM:
        if method.kind in (DRAFTER, TARGET):
            return LLM(build(Config(draft="none", keep_prefixes=0), drafter if method.kind == DRAFTER else target))
        cascade = None if method.kind == LOSSLESS else f"{method.kind}:{method.alpha!r}"
        draft = f"model:{drafter.name}"
        config = Config(draft=draft, cascade=cascade, num_speculative_tokens=nodes, keep_prefixes=0)
        return LLM(build(config, target, {drafter.name: drafter}))

    return {method: made(method) for method in chosen}


def test_the_baselines_bound_what_is_between_them() -> None:
    target, drafter = pair()
    chosen = methods(["v3", "chow"], [0.0, 1.0])
    assert [method.name for method in chosen[:5]] == [TARGET, DRAFTER, LOSSLESS, "plain:0", "plain:1"]
    runs = list(run_sweep(assemble(target, drafter, chosen, 3), ASKS, target.model, 40))
    assert len(runs) == len(chosen) * len(ASKS)
    points = {point.method.name: point for point in tabulate(runs)}
    assert list(points) == ["target", "drafter", "lossless", "plain:0", "plain:1", "chow:0", "chow:1", "v3:0", "v3:1"]
    for name in ("target", "lossless", "v3:0"):
        assert points[name].agreement == 1.0
    assert points["drafter"].agreement < 1.0
    assert points["plain:1"].agreement == points["drafter"].agreement
    assert points["plain:1"].given_up.not_deferred == points["plain:1"].tokens
    texts = {(run.method.name, run.ask.name): run.completion.text for run in runs}
    for ask in ASKS:
        assert texts["lossless", ask.name] == texts["target", ask.name]
        assert texts["plain:1", ask.name] == texts["drafter", ask.name]
    assert (points["target"].scored, points["target"].right) == (2, 1)
    told = [point.as_dict(points["target"]) for point in points.values()]
    assert told[0]["speed"] == 1.0
    json.dumps([told, [run.as_dict() for run in runs]])


def test_agreement_of_a_cascade_is_what_its_own_counter_says() -> None:
    """Overrides are facts at temperature 0: tokens that the target would not have chosen."""
    target, drafter = pair()
    chosen = [Method(TARGET), Method(LOSSLESS), Method("v3", 0.9), Method("chow", 0.3)]
    runs = list(run_sweep(assemble(target, drafter, chosen, 4), ASKS, target.model, 50))
    for run in runs:
        told = run.completion.cascade
        assert (told is not None) == (run.method.alpha is not None)
        if told is not None:
            assert told["num_tokens"] == run.completion.usage.completion_tokens
            assert run.agreeing == told["num_tokens"] - told["num_overrides"]
    for point in tabulate(runs):
        if point.method.alpha is not None:
            assert 0 < point.agreement < 1
            assert point.given_up.lost > 0


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 70])
def test_agreements_look_after_the_true_text(length: int) -> None:
    model = pair()[0].model
    prompt = list(b"the tar")
    said: list[int] = []
    for index in range(length):
        best = choice(model, [*prompt, *said])
        said.append(best if index % 3 else (best + 1) % 256)
    assert agreements(model, prompt, said) == sum(1 for index in range(length) if index % 3)


def choice(model: Model, tokens: list[int]) -> int:
    assert isinstance(model, ToyModel)
    return int(np.argmax(model.logits_of(tuple(tokens[-5:]))))


@pytest.mark.parametrize(
    ("text", "answers", "right"),
    [
        ("It is 42.", ("42",), True),
        ("It is 42.5", ("42",), False),
        ("It is 142", ("42",), False),
        ("it is paris, of course", ("Rome", "Paris"), True),
        ("parish", ("Paris",), False),
        ("anything", (), None),
        ("a+b", ("a+b",), True),
    ],
)
def test_answers_stand_on_their_own(text: str, answers: tuple[str, ...], right: bool | None) -> None:
    assert has_answer(text, answers) is right


def test_a_wrong_rule_is_refused_before_weights_are_read() -> None:
    def never(kv_memory: int | None) -> Model:
        raise AssertionError("weights were loaded")

    target, drafter = (FoundModel(name, pair()[0].tokenizer, None, never) for name in ("big", "small"))
    with pytest.raises(UsageError, match="unknown cascade rule 'v7'"):
        assemble(target, drafter, [Method("v7", 0.1)], 3)
    assert Method(PLAIN, 0.25).name == "plain:0.25"
