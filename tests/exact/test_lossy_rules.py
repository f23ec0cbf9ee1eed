"""Lossy rules have a stated law, and meet it exactly: cascades against pi, typical acceptance against its mixture."""

from __future__ import annotations

from fractions import Fraction

import pytest

from forerun.core.protocols import Rng, Verifier
from forerun.core.scratch import Scratch
from forerun.verifiers.block import Block
from forerun.verifiers.cascade import RULES, Cascade
from forerun.verifiers.kseq import KSeq
from forerun.verifiers.rejection import Rejection
from forerun.verifiers.traversal import Traversal
from forerun.verifiers.typical import Typical
from tests.exact.drafting import chain, looked_up, sometimes, tree
from tests.exact.enumeration import (
    Drafting,
    Table,
    View,
    committed_law,
    every_path,
    fractions,
    greedy,
    plain_law,
    random_table,
)

P, Q = random_table("p", 3), random_table("q", 3)
P2, Q2 = random_table("p", 2, highest=9), random_table("q", 2, highest=9)
P2_ZEROS, Q2_ZEROS = random_table("p", 2, lowest=0, highest=2), random_table("q", 2, lowest=0, highest=2)
SPEC = {"rejection": Rejection(), "block": Block(), "traversal": Traversal(), "kseq": KSeq()}
# At this alpha each rule sides with the drafter after some texts and with the target after others.
ALPHA = Fraction(1, 5)


def cascade(rule: str, within: str = "rejection", alpha: Fraction = ALPHA) -> Cascade:
    return Cascade(rule, alpha, SPEC[within])  # type: ignore[arg-type]


def mixed(rule: Cascade, p: Table, q: Table) -> Table:
    return Table(p.vocab, lambda text: rule.mix(p.law(text), q.law(text), p.belief(text), q.belief(text)))


@pytest.mark.parametrize("within", SPEC)
@pytest.mark.parametrize("rule", RULES)
def test_cascade_follows_pi(rule: str, within: str) -> None:
    verifier = cascade(rule, within)
    pi = mixed(verifier, P2, Q2)
    for drafting in (chain(Q2, 1), chain(Q2, 2), tree(Q2, (2, 1)), tree(Q2, (2, 1), with_replacement=True)):
        assert committed_law(verifier, P2, drafting, 3) == plain_law(pi, 3)


@pytest.mark.parametrize("rule", RULES)
def test_these_cascades_mix(rule: str) -> None:
    """Otherwise the comparison above would say little."""
    pi = mixed(cascade(rule), P2, Q2)
    texts = [text for length in range(3) for text in plain_law(P2, length)]
    assert any(list(pi.law(text)) != list(P2.law(text)) for text in texts)
    assert any(list(pi.law(text)) != list(Q2.law(text)) for text in texts)


@pytest.mark.parametrize("rule", RULES)
def test_cascade_with_zeros(rule: str) -> None:
    verifier = cascade(rule)
    pi = mixed(verifier, P2_ZEROS, Q2_ZEROS)
    for drafting in (chain(Q2_ZEROS, 2), tree(Q2_ZEROS, (2, 2))):
        assert committed_law(verifier, P2_ZEROS, drafting, 4) == plain_law(pi, 4)


@pytest.mark.parametrize("rule", RULES)
def test_cascade_of_three_tokens(rule: str) -> None:
    verifier = cascade(rule)
    assert committed_law(verifier, P, chain(Q, 2), 3) == plain_law(mixed(verifier, P, Q), 3)


@pytest.mark.parametrize("rule", RULES)
def test_cascade_at_temperature_0_compares_beliefs(rule: str) -> None:
    """The laws are one-hot; the tests look at temperature 1. Greedy drafts may leave their q to be inferred."""
    verifier = cascade(rule)
    p, q = greedy(P), greedy(Q)
    pi = mixed(verifier, p, q)
    assert committed_law(verifier, p, chain(q, 2, beliefs=True), 4) == plain_law(pi, 4)
    assert committed_law(verifier, p, greedily(Q, 2), 4) == plain_law(pi, 4)


def greedily(drafter: Table, length: int) -> Drafting:
    """A chain of the drafter's favorites, with beliefs and without q."""
    told = chain(greedy(drafter), length, beliefs=True)

    def drafting(text: tuple[int, ...], rng: Rng):  # type: ignore[no-untyped-def]
        draft = told(text, rng)
        return type(draft)(draft.tokens, draft.parents, None, beliefs=draft.beliefs)

    return drafting


def test_cascade_is_the_target_where_nothing_is_drafted() -> None:
    verifier = cascade("v1")
    pi = mixed(verifier, P, Q)
    partly = Table(3, lambda text: P.law(text) if len(text) % 2 else pi.law(text))
    assert committed_law(verifier, P, sometimes(chain(Q, 1)), 3) == plain_law(partly, 3)


def test_cascade_is_the_target_for_drafts_without_a_law() -> None:
    assert committed_law(cascade("v1"), P, looked_up(3, (2, 1)), 3) == plain_law(P, 3)


def test_a_chain_of_three_stages() -> None:
    """The middle stage's own cascade is a law like any other: it drafts for the last stage with it."""
    small = random_table("small", 2)
    first = cascade("v3", alpha=Fraction(1, 3))
    middle = mixed(first, Q2, small)
    assert committed_law(first, Q2, chain(small, 2), 3) == plain_law(middle, 3)
    second = cascade("v2")
    assert committed_law(second, P2, chain(middle, 2), 3) == plain_law(mixed(second, P2, middle), 3)


def test_a_bonus_from_the_target_after_the_last_drafted_token_is_not_pi() -> None:
    """What the rule avoids: the suite sees it."""
    verifier = cascade("v1")
    pi = mixed(verifier, P, Q)

    class WithBonus:
        name, exact, shares_noise, wants_beliefs = "wrong", False, False, True

        def verify(self, draft, target, rng):  # type: ignore[no-untyped-def]
            from forerun.verifiers.cascade import _Mixed

            class GoingOn(_Mixed):
                def ends_at(self, node: int) -> bool:
                    return False

            return Rejection().verify(draft, GoingOn(verifier.mixture, draft, target, Scratch()), rng)

    assert committed_law(WithBonus(), P, chain(Q, 1), 3) != plain_law(pi, 3)


def typical_law(rule: Typical, p: Table, q: Table, children: int) -> Table:
    def law(text: tuple[int, ...]):  # type: ignore[no-untyped-def]
        typical = [bool(x > rule.threshold(p.law(text))) for x in p.law(text)]
        passing = sum(x for x, good in zip(q.law(text), typical, strict=True) if good)
        none = (1 - passing) ** children
        among = (1 - none) / passing if passing else Fraction(0)
        return p.law(text) * none + q.law(text) * [among if good else Fraction(0) for good in typical]

    return Table(p.vocab, law)


@pytest.mark.parametrize("children", [1, 2, 3])
def test_typical_follows_its_mixture(children: int) -> None:
    rule = Typical(eps=0.3, delta=0.6)
    drafting = tree(Q, (children,), with_replacement=True)
    law = typical_law(rule, P, Q, children)
    assert committed_law(rule, P, drafting, 3, rounds=1) == {
        (first, *rest): p * plain
        for (first,), p in plain_law(law, 1).items()
        for rest, plain in plain_law(P, 2, (first,)).items()
    }


def test_typical_is_exact_at_temperature_0() -> None:
    assert committed_law(Typical(), greedy(P), tree(Q, (2, 1)), 3) == plain_law(greedy(P), 3)


LOSSY: dict[str, tuple[Verifier, Table, Drafting]] = {
    **{f"cascade {rule}": (cascade(rule), P2, tree(Q2, (2, 1))) for rule in RULES},
    "cascade in block": (cascade("v2", "block"), P2, chain(Q2, 3)),
    "typical": (Typical(eps=0.3, delta=0.6), P, tree(Q, (2, 1), with_replacement=True)),
    "typical, one child": (Typical(eps=0.3, delta=0.6), P, chain(Q, 2)),
    "greedy": (cascade("v3", alpha=Fraction(1, 2)), greedy(P), chain(greedy(Q), 2, beliefs=True)),
}


@pytest.mark.parametrize("case", LOSSY)
def test_overrides_and_total_variation_agree_on_average(case: str) -> None:
    """Overrides are counted under the best coupling, so their mean is the total variation given up."""
    verifier, p, drafting = LOSSY[case]

    def run(rng: Rng) -> tuple[int, float]:
        draft = drafting((), rng)
        verdict = verifier.verify(draft, View(p, (), draft, rng), rng)
        return verdict.overrides, verdict.given_up

    overrides = given_up = 0.0
    for (count, lost), probability in every_path(run):
        overrides += count * float(probability)
        given_up += lost * float(probability)
    assert overrides == pytest.approx(given_up, abs=1e-12)


def test_some_of_these_cases_override() -> None:
    verifier = cascade("v3", alpha=Fraction(1, 2))
    hot = fractions(0, 1, 0)
    p = Table(3, lambda text: fractions(1, 0, 0), lambda text: fractions(5, 3, 2))
    q = Table(3, lambda text: hot, lambda text: fractions(2, 5, 3))
    draft = chain(q, 2, beliefs=True)
    seen = [run for run, _ in every_path(lambda rng: _verdict(verifier, p, draft, rng))]
    assert seen == [(2, 2.0)]


def _verdict(verifier: Verifier, p: Table, drafting: Drafting, rng: Rng) -> tuple[int, float]:
    draft = drafting((), rng)
    verdict = verifier.verify(draft, View(p, (), draft, rng), rng)
    return verdict.overrides, verdict.given_up
