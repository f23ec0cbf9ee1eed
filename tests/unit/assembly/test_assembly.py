"""The parts put together: who is the default, who is at hand, and what results will say of them."""

from __future__ import annotations

from typing import Any

import pytest

from forerun.assembly import build
from forerun.assembly.assembly import Assembly
from forerun.cascade.model import CascadeModel
from forerun.config import Config
from forerun.controllers.fixed import Fixed
from forerun.controllers.heuristic import Heuristic
from forerun.errors import CompositionError, ForerunError, UsageError
from tests.unit.assembly.found import tiny

EXACT = {"keyed", "rejection", "block", "traversal", "kseq"}


def toy(**options: Any) -> Assembly:
    return build(Config(model="toy", **options))


@pytest.mark.parametrize("verifier", ["keyed", "block", "typical"])
def test_the_chosen_rule_is_the_default_and_all_exact_ones_are_at_hand(verifier: str) -> None:
    made = toy(verifier=verifier)
    assert made.verifier == next(iter(made.engine.verifiers)) == verifier
    assert set(made.engine.verifiers) == EXACT | {verifier}
    assert made.lossy == ("typical" if verifier == "typical" else "")


def test_a_text_that_is_mixed_has_one_rule_only() -> None:
    made = toy(draft="model:toy", cascade="v3:0.5")
    assert (len(made.engine.verifiers), made.lossy) == (1, "v3:0.5")
    plain = toy(draft="model:toy", cascade="plain:0.5")
    assert isinstance(plain.engine.target, CascadeModel)
    assert plain.engine.speculator.methods == {}


@pytest.mark.parametrize(
    ("options", "controller", "nodes"),
    [
        ({"draft": "none"}, Fixed, 0),
        ({"draft": "ngram"}, Fixed, 7),
        ({"draft": "ngram", "num_speculative_tokens": 3}, Fixed, 3),
        ({"draft": "ngram", "controller": "heuristic", "num_speculative_tokens": 4}, Heuristic, 4),
    ],
)
def test_the_controller(options: dict[str, Any], controller: type[object], nodes: int) -> None:
    made = toy(**options)
    chosen = made.engine.speculator.controller
    assert isinstance(chosen, controller)
    text = made.engine.add(_request())
    assert chosen.nodes(text) == nodes


def _request() -> Any:
    from forerun.core.request import Request

    return Request([1, 2, 3])


def test_what_results_say() -> None:
    made = toy(draft="ngram", other_drafts=["suffix"], max_sequences=3)
    assert (made.model, made.draft, made.backend, made.max_sequences) == ("toy", "ngram", "toy", 3)
    assert list(made.engine.speculator.methods) == ["ngram", "suffix"]
    assert made.uses_predictions is False
    assert made.with_tokenizer(made.tokenizer, None).engine is made.engine


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"draft": "ngrm"}, UsageError),
        ({"draft": "ngram", "cascade": "v3:0.5"}, CompositionError),
        ({"draft": "self:exit=1", "cascade": "v9:1"}, UsageError),
        ({"draft": "self:int9"}, UsageError),
        ({"other_drafts": ["ngram", "sufix"]}, UsageError),
    ],
    ids=str,
)
def test_what_cannot_work_together_is_refused_before_weights_are_read(
    options: dict[str, Any], error: type[ForerunError]
) -> None:
    with pytest.raises(error):
        build(Config(backend="reference", **options), tiny())
