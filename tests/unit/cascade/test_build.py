"""A cascade is checked against what drafts before anything is loaded, and every stage gets its own rule."""

from __future__ import annotations

import pytest

from forerun.assembly.models import find_model
from forerun.cascade.build import Cascades, stages
from forerun.cascade.mixtures import Mixture
from forerun.cascade.model import CascadeModel
from forerun.cascade.verifier import Cascade, PlainCascade
from forerun.config import Config
from forerun.drafters.grammar import parse
from forerun.errors import CompositionError, UsageError
from forerun.verifiers.block import Block
from forerun.verifiers.keyed import Keyed
from forerun.verifiers.rejection import Rejection


def of(cascade: str | None, verifier: str = "keyed") -> Cascades:
    return Cascades.of(Config(cascade=cascade, verifier=verifier))


def test_one_rule_for_each_stage() -> None:
    assert of(None) == Cascades()
    assert of("v3:0.5, chow:0.2") == Cascades((Mixture("v3", 0.5), Mixture("chow", 0.2)))
    assert of("plain:0.5,plain:0.2") == Cascades((Mixture("chow", 0.5), Mixture("chow", 0.2)), plain=True)


@pytest.mark.parametrize(
    ("draft", "models"),
    [
        ("model:a", ["model:a"]),
        ("model:a<model:b", ["model:a", "model:b"]),
        ("model:a<ngram", ["model:a"]),
        ("ngram", []),
        ("ngram+model:a", []),
        ("self:int4", []),
    ],
)
def test_the_models_from_the_target_down(draft: str, models: list[str]) -> None:
    assert [str(single) for single in stages(parse(draft))] == models


@pytest.mark.parametrize(
    ("cascade", "draft"),
    [
        ("v3:0.5", "model:a"),
        ("v3:0.5", "self:int4"),
        ("v3:0.5", "ngram+model:a"),
        ("v3:0.5", "model:a<model:b"),
        ("v3:0.5,chow:0.1", "model:a<model:b"),
        ("plain:0.5", "model:a"),
    ],
)
def test_what_fits(cascade: str, draft: str) -> None:
    of(cascade).check(parse(draft), "target")


@pytest.mark.parametrize(
    ("cascade", "draft"),
    [
        ("v3:0.5", "ngram"),
        ("v3:0.5,chow:0.1", "model:a"),
        ("plain:0.5", "model:a<model:b"),
        ("plain:0.5", "ngram"),
    ],
)
def test_what_does_not(cascade: str, draft: str) -> None:
    with pytest.raises(CompositionError, match="target"):
        of(cascade).check(parse(draft), "target")


def test_what_is_no_cascade() -> None:
    with pytest.raises(UsageError, match="plain in some stages only"):
        of("plain:0.5,v3:0.5")
    with pytest.raises(CompositionError, match="the verifier block has nothing to verify"):
        of("plain:0.5", verifier="block")
    with pytest.raises(UsageError, match="unknown cascade rule"):
        of("v9:0.5")


def test_the_rule_runs_within_an_exact_one() -> None:
    within = of("v3:0.5").verifier(Block())
    assert isinstance(within, Cascade)
    assert isinstance(within.within, Block)
    # Keyed verification has no draws that a mixture could change, so rejection takes its place.
    alone = of("v3:0.5").verifier(Keyed())
    assert isinstance(alone, Cascade)
    assert isinstance(alone.within, Rejection)
    assert isinstance(of("plain:0.5").verifier(Keyed()), PlainCascade)
    assert not within.exact


def test_what_is_run_at_each_stage() -> None:
    models = [find_model("toy", Config()).model for _ in range(2)]
    target = find_model("toy", Config()).model
    assert of("v3:0.5").target(target, []) is target
    assert of("v3:0.5").model(0, models) is models[0]
    mixed = of("v3:0.5,chow:0.1")
    assert isinstance(mixed.model(0, models), CascadeModel)
    assert mixed.model(1, models) is models[1]
    assert isinstance(of("plain:0.5").target(target, models), CascadeModel)
