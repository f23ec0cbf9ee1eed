"""Cascades of models: without speculation, of three stages, and speculating, each against what it states, enumerated."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from forerun.backends.toy import ToyModel
from forerun.cascade.mixtures import Mixture
from forerun.cascade.model import CascadeModel
from forerun.cascade.verifier import Cascade, PlainCascade
from forerun.core.choosing import softmax
from forerun.core.draft import Draft
from forerun.core.model import NOTHING, ForwardInput, Model, Needs
from forerun.core.protocols import Drafter, Rng, Verifier
from forerun.drafters.model import ModelDrafter
from forerun.drafters.none import NoneDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.verifiers.rejection import Rejection
from forerun.verifiers.traversal import Traversal
from tests.exact.enumeration import Table, Text, TextProbs, plain_probs, random_table
from tests.exact.through_engine import PROMPT, probs_of, request, toy, written

SMALL, MIDDLE, LARGE = (random_table(name, 2, highest=5) for name in ("small", "middle", "large"))
CHOW, DIFF, SURE = Mixture("chow", Fraction(7, 20)), Mixture("diff", Fraction(1, 10)), Mixture("chow", Fraction(1, 5))


def mixed(rule: Mixture, p: Table, q: Table) -> Table:
    return Table(p.vocab, lambda text: rule.mix(p.probs(text), q.probs(text), p.probs(text), q.probs(text)))


def stages(*parts: Table | Mixture) -> tuple[Model, Table]:
    """A cascade from the smallest model up, with the rule between each two, and the distribution it must have."""
    assert isinstance(parts[0], Table)
    model: Model = toy(parts[0])
    whole = parts[0]
    for rule, table in zip(parts[1::2], parts[2::2], strict=True):
        assert isinstance(rule, Mixture)
        assert isinstance(table, Table)
        model, whole = CascadeModel(model, toy(table), rule), mixed(rule, table, whole)
    return model, whole


def probs_through(make: Callable[[], tuple[Model, Drafter]], rule: Verifier, length: int, nodes: int = 3) -> TextProbs:
    def run(rng: Rng) -> Text:
        target, drafter = make()
        return written(target, drafter, rule, [request(length)], rng, nodes)[0]

    return probs_of(run)


@pytest.mark.parametrize("rule", [CHOW, DIFF, SURE], ids=lambda rule: f"{rule.rule} {rule.alpha}")
def test_the_plain_cascade(rule: Mixture) -> None:
    whole = stages(SMALL, rule, LARGE)[1]
    assert probs_through(lambda: (stages(SMALL, rule, LARGE)[0], NoneDrafter()), Rejection(), 5) == plain_probs(
        whole, 5
    )
    texts = [text for length in range(4) for text in plain_probs(LARGE, length)]
    assert probs_through(lambda: (stages(SMALL, rule, LARGE)[0], NoneDrafter()), PlainCascade(), 5) == plain_probs(
        whole, 5
    )
    for other in (SMALL, LARGE):
        assert any(list(whole.probs(text)) != list(other.probs(text)) for text in texts), "this one does not mix"


def test_three_stages() -> None:
    parts = (SMALL, CHOW, MIDDLE, SURE, LARGE)
    whole = stages(*parts)[1]
    assert probs_through(lambda: (stages(*parts)[0], NoneDrafter()), Rejection(), 5) == plain_probs(whole, 5)


@pytest.mark.parametrize("rule", [Rejection(), Traversal()], ids=lambda rule: rule.name)
def test_exact_rules_on_top_keep_the_distribution_of_a_cascade(rule: Verifier) -> None:
    def make() -> tuple[Model, Drafter]:
        target = stages(SMALL, CHOW, LARGE)[0]
        return target, ModelDrafter(toy(MIDDLE), target.info)

    assert probs_through(make, rule, 3, 2) == plain_probs(stages(SMALL, CHOW, LARGE)[1], 3)
    suffix = probs_through(lambda: (stages(SMALL, CHOW, LARGE)[0], SuffixDrafter()), rule, 4)
    assert suffix == plain_probs(stages(SMALL, CHOW, LARGE)[1], 4)


@pytest.mark.parametrize("last", ["v2", "opt"])
def test_a_speculative_cascade_of_three_stages(last: str) -> None:
    """The mixture of small and middle drafts for the target. (A stage below it draws with the same numbers, which the
    enumeration cannot follow; that it changes no draft is in the contract suite.)"""
    second = Cascade(last, Fraction(1, 5))  # type: ignore[arg-type]

    def make() -> tuple[Model, Drafter]:
        target = toy(LARGE)
        return target, ModelDrafter(stages(SMALL, CHOW, MIDDLE)[0], target.info)

    pi = mixed(second.mixture, LARGE, stages(SMALL, CHOW, MIDDLE)[1])
    # The last token has no draft (no room for one), so there the distribution is the target's.
    but_the_last = Table(2, lambda text: pi.probs(text) if len(text) < 2 else LARGE.probs(text))
    assert probs_through(make, second, 3, 2) == plain_probs(but_the_last, 3)


@pytest.mark.parametrize("rule", ["v1", "v2", "v3"])
def test_rows_of_token_rules_are_their_mixture(rule: str) -> None:
    model = CascadeModel(toy(SMALL), toy(LARGE), Mixture(rule, 0.2))
    whole = mixed(Mixture(rule, Fraction(1, 5)), LARGE, SMALL)
    kv = model.open()
    with model.forward([ForwardInput(kv, PROMPT, Draft((0, 1, 1), (-1, -1, 1)))]) as output:
        for row, text in zip(output.logits(0), ((), (0,), (1,), (1, 1)), strict=True):
            assert softmax(row) == pytest.approx(whole.probs(text).astype(np.float64), abs=1e-6)


class Counting(ToyModel):
    """A toy that notes the tokens it reads."""

    read = 0

    def forward(self, inputs: Any, needs: Needs = NOTHING) -> Any:
        self.read += sum(len(given.input_tokens) for given in inputs)
        return super().forward(inputs, needs)


def test_the_large_model_runs_only_where_it_is_asked() -> None:
    small, large = toy(SMALL), toy(LARGE, Counting)
    assert isinstance(large, Counting)
    for alpha, asked in ((0, 3), (1, 0)):
        large.read = 0
        model = CascadeModel(small, large, Mixture("chow", alpha))
        kv = model.open()
        for token in (*PROMPT, 1, 1):
            with model.forward([ForwardInput(kv, (token,), logits=kv.length >= len(PROMPT) - 1)]) as output:
                if kv.length >= len(PROMPT) - 1:
                    assert output.not_deferred(0, 0) == (asked == 0)
                output.commit(0, ())
        assert large.read == (len(PROMPT) + 2 if asked else 0)
        assert kv.length == len(PROMPT) + 2
