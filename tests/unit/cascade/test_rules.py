"""Typical acceptance and cascades: published vectors, thresholds, and what is refused."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from forerun.cascade.mixtures import RULES, Mixture
from forerun.cascade.typical import Typical, entropy
from forerun.cascade.verdict import LossyVerdict, is_override
from forerun.cascade.verifier import Cascade
from forerun.core.draft import Draft
from forerun.errors import CompositionError, UsageError
from forerun.verifiers.block import Block
from forerun.verifiers.keyed import Keyed
from tests.exact.enumeration import Replay, Table, View, fractions

P, Q = fractions(5, 3, 2), fractions(2, 5, 3)


def pi(rule: str, alpha: str) -> list[Fraction]:
    exact: Any = Fraction(alpha)
    return list(Cascade(rule, exact).mix(P, Q, P, Q))


@pytest.mark.parametrize(
    ("rule", "alpha", "want"),
    [
        ("v1", "1/10", "25 65 10"),
        ("v1", "1/4", "10 56 34"),
        ("v2", "1/10", "60 24 16"),
        ("v2", "1/4", "35 59 6"),
        ("v3", "1/4", "60 24 16"),
        ("v3", "1/2", "35 59 6"),
        ("chow", "0", "50 30 20"),
        ("chow", "49/100", "50 30 20"),
        ("chow", "1/2", "20 50 30"),
    ],
)
def test_cascade_vectors(rule: str, alpha: str, want: str) -> None:
    assert pi(rule, alpha) == [Fraction(int(part), 100) for part in want.split()]


def test_diff_and_opt_compare_the_maxima() -> None:
    """max q = .4, max p = .5, TV = .3: diff defers below .1, opt below a third."""
    q = fractions(3, 4, 3)
    p = fractions(5, 1, 4)
    for rule, border in (("diff", Fraction(1, 10)), ("opt", Fraction(1, 3))):
        below: Any = border - Fraction(1, 100)
        at: Any = border
        assert list(Cascade(rule, below).mix(p, q, p, q)) == list(p)
        assert list(Cascade(rule, at).mix(p, q, p, q)) == list(q)


@pytest.mark.parametrize("rule", RULES)
def test_rules_compare_at_temperature_1_and_mix_what_is_sampled(rule: str) -> None:
    """At temperature 0 what is sampled is one-hot; what decides is temperature 1."""
    p, q = fractions(1, 0, 0), fractions(0, 1, 0)
    for alpha in (0.0, 0.25, 1.0):
        mixed = Cascade(rule, alpha).mix(p, q, P, Q)
        assert list(mixed) in (list(p), list(q))
    assert list(Cascade(rule, 1.0).mix(p, q, P, Q)) == list(q)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("alpha", ["0", "1/3", "1", "2"])
def test_a_mixture_is_a_distribution(rule: str, alpha: str) -> None:
    assert sum(pi(rule, alpha)) == 1
    assert min(pi(rule, alpha)) >= 0


def test_overrides_are_facts_at_temperature_0() -> None:
    hot_p, hot_q = fractions(1, 0, 0), fractions(0, 1, 0)
    p = Table(3, lambda text: hot_p, lambda text: P)
    draft = Draft.chain((1, 1), (hot_q, hot_q))
    draft = Draft(draft.tokens, draft.parents, draft.q, annotations=(Q, Q))
    rng = Replay([])
    verdict = Cascade("v3", 0.5).verify(draft, View(p, (), draft, rng), rng)
    assert verdict == LossyVerdict((0,), 1, (True, True), (1.0, 1.0))
    assert rng.probability == 1
    assert Cascade("v3", 0.1).verify(draft, View(p, (), draft, rng), rng) == LossyVerdict((), 0, (False,), (0.0,))


def test_without_an_annotation_q_is_its_own() -> None:
    p = Table(3, lambda text: P)
    draft = Draft.chain((1,), (Q,))
    rng = Replay([])
    assert Cascade("chow", 0.5).verify(draft, View(p, (), draft, rng), rng).bonus == 1


@pytest.mark.parametrize("rule", ["V3", "", "chao", "v4"])
def test_unknown_rules_list_the_known(rule: str) -> None:
    with pytest.raises(UsageError, match=r"the rules are chow, diff, opt, v1, v2, v3\."):
        Cascade(rule, 0.1)


@pytest.mark.parametrize("alpha", [-0.1, math.nan, math.inf])
def test_alpha_out_of_range(alpha: float) -> None:
    with pytest.raises(UsageError, match="must be 0 or a positive number"):
        Cascade("v1", alpha)


def test_what_a_cascade_cannot_run_on() -> None:
    for within in (Keyed(), Typical()):
        with pytest.raises(CompositionError, match="a cascade cannot run on"):
            Cascade("v1", 0.1, within)
    assert Cascade("v1", 0.1, Block()).within.name == "block"


def test_entropy_and_threshold() -> None:
    assert entropy(fractions(1, 1, 0)) == pytest.approx(math.log(2))
    assert entropy(np.array([1.0, 0.0])) == 0
    rule = Typical()
    assert rule.threshold(fractions(1, 0)) == 0.09
    assert rule.threshold(fractions(*[1] * 100)) == pytest.approx(0.3 / 100)


def test_typical_takes_the_first_plausible_child() -> None:
    p = Table(3, lambda text: fractions(90, 8, 2))
    draft = Draft((2, 1, 0, 0), (-1, -1, -1, 1))
    rng = Replay([])
    assert Typical().verify(draft, View(p, (), draft, rng), rng).path == (2,)
    assert Typical(eps=0.05).verify(draft, View(p, (), draft, rng), rng).path == (1, 3)
    assert Typical(eps=0.01).verify(draft, View(p, (), draft, rng), rng).path == (0,)


@pytest.mark.parametrize(("eps", "delta"), [(0, 0.3), (1.1, 0.3), (0.1, 0), (math.nan, 0.3), (0.1, math.inf)])
def test_typical_refuses_thresholds_that_mean_nothing(eps: float, delta: float) -> None:
    with pytest.raises(UsageError, match="typical acceptance with eps"):
        Typical(eps, delta)


@pytest.mark.parametrize("rule", ["v1", "v2", "v3"])
@pytest.mark.parametrize("alpha", ["0", "1/4", "1/2", "1"])
def test_the_loss_said_beside_a_mixture_is_its_total_variation(rule: str, alpha: str) -> None:
    mixed, lost = Mixture(rule, Fraction(alpha)).mix_and_loss(P, Q, P, Q)
    assert lost == sum(max(0, p - pi) for p, pi in zip(P, mixed, strict=True))


@pytest.mark.parametrize(("token", "agree"), [(0, 1), (1, Fraction(3, 5)), (2, Fraction(2, 3))])
def test_overrides_are_counted_under_the_best_coupling(token: int, agree: Fraction) -> None:
    rng = Replay([])
    assert not is_override(P, Q, token, rng)
    assert rng.probability == agree
