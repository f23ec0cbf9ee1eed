"""Cascades of models: without speculation, of three stages, and speculating, each against its stated law, enumerated."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from forerun.backends.cascade import CascadeModel
from forerun.backends.toy import ToyModel
from forerun.core.draft import Draft
from forerun.core.mixtures import Mixture
from forerun.core.protocols import Drafter, ForwardInput, Model, Rng, Verifier
from forerun.core.sampling import softmax
from forerun.drafters.model import ModelDrafter
from forerun.drafters.none import NoneDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.verifiers.cascade import Cascade
from forerun.verifiers.rejection import Rejection
from forerun.verifiers.traversal import Traversal
from tests.exact.enumeration import Table, Text, plain_law, random_table
from tests.exact.through_engine import PROMPT, EnumeratedNoise, law_of, request, toy, written

SMALL, MIDDLE, LARGE = (random_table(name, 2, highest=5) for name in ("small", "middle", "large"))
CHOW, DIFF, SURE = Mixture("chow", Fraction(7, 20)), Mixture("diff", Fraction(1, 10)), Mixture("chow", Fraction(1, 5))


def mixed(rule: Mixture, p: Table, q: Table) -> Table:
    return Table(p.vocab, lambda text: rule.mix(p.law(text), q.law(text), p.law(text), q.law(text)))


def stages(*parts: Table | Mixture) -> tuple[Model, Table]:
    """A cascade from the smallest model up, with the rule between each two, and the law that it must have."""
    assert isinstance(parts[0], Table)
    model: Model = toy(parts[0])
    law = parts[0]
    for rule, table in zip(parts[1::2], parts[2::2], strict=True):
        assert isinstance(rule, Mixture)
        assert isinstance(table, Table)
        model, law = CascadeModel(model, toy(table), rule), mixed(rule, table, law)
    return model, law


def law_through(make: Callable[[], tuple[Model, Drafter]], rule: Verifier, length: int, budget: int = 3):  # type: ignore[no-untyped-def]
    def run(rng: Rng) -> Text:
        asked = request(length)
        asked.noise = EnumeratedNoise(rng)
        target, drafter = make()
        return written(target, drafter, rule, [asked], rng, budget)[0]

    return law_of(run)


@pytest.mark.parametrize("rule", [CHOW, DIFF, SURE], ids=lambda rule: f"{rule.rule} {rule.alpha}")
def test_the_plain_cascade(rule: Mixture) -> None:
    law = stages(SMALL, rule, LARGE)[1]
    assert law_through(lambda: (stages(SMALL, rule, LARGE)[0], NoneDrafter()), Rejection(), 5) == plain_law(law, 5)
    texts = [text for length in range(4) for text in plain_law(LARGE, length)]
    for other in (SMALL, LARGE):
        assert any(list(law.law(text)) != list(other.law(text)) for text in texts), "this one does not mix"


def test_three_stages() -> None:
    parts = (SMALL, CHOW, MIDDLE, SURE, LARGE)
    law = stages(*parts)[1]
    assert law_through(lambda: (stages(*parts)[0], NoneDrafter()), Rejection(), 5) == plain_law(law, 5)


@pytest.mark.parametrize("rule", [Rejection(), Traversal()], ids=lambda rule: rule.name)
def test_exact_rules_on_top_keep_the_law_of_a_cascade(rule: Verifier) -> None:
    def make() -> tuple[Model, Drafter]:
        target = stages(SMALL, CHOW, LARGE)[0]
        return target, ModelDrafter(toy(MIDDLE), target.info)

    assert law_through(make, rule, 3, 2) == plain_law(stages(SMALL, CHOW, LARGE)[1], 3)
    suffix = law_through(lambda: (stages(SMALL, CHOW, LARGE)[0], SuffixDrafter()), rule, 4)
    assert suffix == plain_law(stages(SMALL, CHOW, LARGE)[1], 4)


@pytest.mark.parametrize("last", ["v2", "opt"])
def test_a_speculative_cascade_of_three_stages(last: str) -> None:
    """The mixture of small and middle drafts for the target. (A helper below it draws with the same numbers, which the
    enumeration cannot follow; that it changes no draft is in the contract suite.)"""
    second = Cascade(last, Fraction(1, 5))  # type: ignore[arg-type]

    def make() -> tuple[Model, Drafter]:
        target = toy(LARGE)
        return target, ModelDrafter(stages(SMALL, CHOW, MIDDLE)[0], target.info)

    pi = mixed(second.mixture, LARGE, stages(SMALL, CHOW, MIDDLE)[1])
    # The last token has no draft (no room for one), so there the law is the target's.
    but_the_last = Table(2, lambda text: pi.law(text) if len(text) < 2 else LARGE.law(text))
    assert law_through(make, second, 3, 2) == plain_law(but_the_last, 3)


@pytest.mark.parametrize("rule", ["v1", "v2", "v3"])
def test_rows_of_token_rules_are_their_mixture(rule: str) -> None:
    model = CascadeModel(toy(SMALL), toy(LARGE), Mixture(rule, 0.2))
    law = mixed(Mixture(rule, Fraction(1, 5)), LARGE, SMALL)
    kv = model.open()
    with model.forward([ForwardInput(kv, PROMPT, Draft((0, 1, 1), (-1, -1, 1)))]) as output:
        for row, text in zip(output.logits(0), ((), (0,), (1,), (1, 1)), strict=True):
            assert softmax(row) == pytest.approx(law.law(text).astype(np.float64), abs=1e-6)


class Counting(ToyModel):
    """A toy that notes the tokens it reads."""

    read = 0

    def forward(self, inputs, needs=None):  # type: ignore[no-untyped-def]
        self.read += sum(len(feed.input_tokens) for feed in inputs)
        return super().forward(inputs)


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
                    assert output.unasked(0, 0) == (asked == 0)
                output.commit(0, ())
        assert large.read == (len(PROMPT) + 2 if asked else 0)
        assert kv.length == len(PROMPT) + 2
