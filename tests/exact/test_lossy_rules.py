"""Lossy rules have a stated distribution, and meet it exactly: cascades pi, typical acceptance its mixture."""

from __future__ import annotations

from fractions import Fraction

import pytest

from forerun.cascade.mixtures import RULES
from forerun.cascade.typical import Typical
from forerun.cascade.verifier import Cascade, _Mixed
from forerun.core.draft import Draft
from forerun.core.protocols import Rng, Target
from forerun.core.scratch import Scratch
from forerun.core.step import Verdict
from forerun.verifiers.block import Block
from forerun.verifiers.distributions import Probs
from forerun.verifiers.kseq import KSeq
from forerun.verifiers.rejection import Rejection
from forerun.verifiers.traversal import Traversal
from tests.exact.drafting import chain, looked_up, sometimes, tree
from tests.exact.enumeration import (
    Drafting,
    Table,
    Text,
    View,
    every_path,
    fractions,
    greedy,
    plain_probs,
    random_table,
    text_probs,
)

P, Q = random_table("p", 3), random_table("q", 3)
P2, Q2 = random_table("p", 2, highest=9), random_table("q", 2, highest=9)
P2_ZEROS, Q2_ZEROS = random_table("p", 2, lowest=0, highest=2), random_table("q", 2, lowest=0, highest=2)
WITHIN = {"rejection": Rejection(), "block": Block(), "traversal": Traversal(), "kseq": KSeq()}
Lossy = Cascade | Typical
# At this alpha each rule sides with the drafter after some texts and with the target after others.
ALPHA = Fraction(1, 5)


def cascade(rule: str, within: str = "rejection", alpha: Fraction = ALPHA) -> Cascade:
    return Cascade(rule, alpha, WITHIN[within])  # type: ignore[arg-type]


def mixed(rule: Cascade, p: Table, q: Table) -> Table:
    return Table(p.vocab, lambda text: rule.mix(p.probs(text), q.probs(text), p.untruncated(text), q.untruncated(text)))


@pytest.mark.parametrize("within", WITHIN)
@pytest.mark.parametrize("rule", RULES)
def test_cascade_follows_pi(rule: str, within: str) -> None:
    verifier = cascade(rule, within)
    pi = mixed(verifier, P2, Q2)
    for drafting in (chain(Q2, 1), chain(Q2, 2), tree(Q2, (2, 1)), tree(Q2, (2, 1), with_replacement=True)):
        assert text_probs(verifier, P2, drafting, 3) == plain_probs(pi, 3)


@pytest.mark.parametrize("rule", RULES)
def test_these_cascades_mix(rule: str) -> None:
    """Otherwise the comparison above would say little."""
    pi = mixed(cascade(rule), P2, Q2)
    texts = [text for length in range(3) for text in plain_probs(P2, length)]
    assert any(list(pi.probs(text)) != list(P2.probs(text)) for text in texts)
    assert any(list(pi.probs(text)) != list(Q2.probs(text)) for text in texts)


@pytest.mark.parametrize("rule", RULES)
def test_cascade_with_zeros(rule: str) -> None:
    verifier = cascade(rule)
    pi = mixed(verifier, P2_ZEROS, Q2_ZEROS)
    for drafting in (chain(Q2_ZEROS, 2), tree(Q2_ZEROS, (2, 2))):
        assert text_probs(verifier, P2_ZEROS, drafting, 4) == plain_probs(pi, 4)


@pytest.mark.parametrize("rule", RULES)
def test_cascade_of_three_tokens(rule: str) -> None:
    verifier = cascade(rule)
    assert text_probs(verifier, P, chain(Q, 2), 3) == plain_probs(mixed(verifier, P, Q), 3)


@pytest.mark.parametrize("rule", RULES)
def test_cascade_at_temperature_0_compares_what_is_untruncated(rule: str) -> None:
    """What is sampled from is one-hot; the tests look at temperature 1. Greedy drafts may leave their q to be inferred."""
    verifier = cascade(rule)
    p, q = greedy(P), greedy(Q)
    pi = mixed(verifier, p, q)
    assert text_probs(verifier, p, chain(q, 2, annotate=True), 4) == plain_probs(pi, 4)
    assert text_probs(verifier, p, greedily(Q, 2), 4) == plain_probs(pi, 4)


def greedily(drafter: Table, length: int) -> Drafting:
    """A chain of the drafter's favorites, annotated and without q."""
    told = chain(greedy(drafter), length, annotate=True)

    def drafting(text: Text, rng: Rng) -> Draft:
        draft = told(text, rng)
        return Draft(draft.tokens, draft.parents, annotations=draft.annotations)

    return drafting


def test_cascade_is_the_target_where_nothing_is_drafted() -> None:
    verifier = cascade("v1")
    pi = mixed(verifier, P, Q)
    partly = Table(3, lambda text: P.probs(text) if len(text) % 2 else pi.probs(text))
    assert text_probs(verifier, P, sometimes(chain(Q, 1)), 3) == plain_probs(partly, 3)


def test_cascade_is_the_target_for_drafts_without_q() -> None:
    assert text_probs(cascade("v1"), P, looked_up(3, (2, 1)), 3) == plain_probs(P, 3)


def test_a_chain_of_three_stages() -> None:
    """The middle stage's own cascade is a distribution like any other, and it drafts for the last stage with it."""
    small = random_table("small", 2)
    first = cascade("v3", alpha=Fraction(1, 3))
    middle = mixed(first, Q2, small)
    assert text_probs(first, Q2, chain(small, 2), 3) == plain_probs(middle, 3)
    second = cascade("v2")
    assert text_probs(second, P2, chain(middle, 2), 3) == plain_probs(mixed(second, P2, middle), 3)


def test_a_bonus_from_the_target_after_the_last_drafted_token_is_not_pi() -> None:
    """What the rule avoids: the suite sees it."""
    verifier = cascade("v1")
    pi = mixed(verifier, P, Q)

    class GoingOn(_Mixed):
        def ends_at(self, node: int) -> bool:
            return False

    class WithBonus:
        name, exact, keyed = "wrong", False, False

        def verify(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
            return Rejection().verify(draft, GoingOn(verifier.mixture, draft, target, Scratch()), rng)  # type: ignore[arg-type]

    assert text_probs(WithBonus(), P, chain(Q, 1), 3) != plain_probs(pi, 3)


def typical_probs(rule: Typical, p: Table, q: Table, children: int) -> Table:
    def mixture(text: Text) -> Probs:
        typical = [bool(x > rule.threshold(p.probs(text))) for x in p.probs(text)]
        passing = sum(x for x, good in zip(q.probs(text), typical, strict=True) if good)
        none = (1 - passing) ** children
        among = (1 - none) / passing if passing else Fraction(0)
        kept: Probs = p.probs(text) * none + q.probs(text) * [among if good else Fraction(0) for good in typical]
        return kept

    return Table(p.vocab, mixture)


@pytest.mark.parametrize("children", [1, 2, 3])
def test_typical_follows_its_mixture(children: int) -> None:
    rule = Typical(eps=0.3, delta=0.6)
    drafting = tree(Q, (children,), with_replacement=True)
    mixture = typical_probs(rule, P, Q, children)
    assert text_probs(rule, P, drafting, 3, steps=1) == {
        (first, *rest): p * plain
        for (first,), p in plain_probs(mixture, 1).items()
        for rest, plain in plain_probs(P, 2, (first,)).items()
    }


def test_typical_is_exact_at_temperature_0() -> None:
    assert text_probs(Typical(), greedy(P), tree(Q, (2, 1)), 3) == plain_probs(greedy(P), 3)


LOSSY: dict[str, tuple[Lossy, Table, Drafting]] = {
    **{f"cascade {rule}": (cascade(rule), P2, tree(Q2, (2, 1))) for rule in RULES},
    "cascade in block": (cascade("v2", "block"), P2, chain(Q2, 3)),
    "typical": (Typical(eps=0.3, delta=0.6), P, tree(Q, (2, 1), with_replacement=True)),
    "typical, one child": (Typical(eps=0.3, delta=0.6), P, chain(Q, 2)),
    "greedy": (cascade("v3", alpha=Fraction(1, 2)), greedy(P), chain(greedy(Q), 2, annotate=True)),
}


@pytest.mark.parametrize("case", LOSSY)
def test_overrides_and_total_variation_agree_on_average(case: str) -> None:
    """Overrides are counted under the best coupling, so their mean is the total variation given up."""
    verifier, p, drafting = LOSSY[case]

    overrides = lost = 0.0
    for (count, variation), probability in every_path(lambda rng: given_up(verifier, p, drafting, rng)):
        overrides += count * float(probability)
        lost += variation * float(probability)
    assert overrides == pytest.approx(lost, abs=1e-12)


def test_some_of_these_cases_override() -> None:
    verifier = cascade("v3", alpha=Fraction(1, 2))
    hot = fractions(0, 1, 0)
    p = Table(3, lambda text: fractions(1, 0, 0), lambda text: fractions(5, 3, 2))
    q = Table(3, lambda text: hot, lambda text: fractions(2, 5, 3))
    draft = chain(q, 2, annotate=True)
    seen = [run for run, _ in every_path(lambda rng: given_up(verifier, p, draft, rng))]
    assert seen == [(2, 2.0)]


def given_up(verifier: Lossy, p: Table, drafting: Drafting, rng: Rng) -> tuple[int, float]:
    """Overrides and total variation of one step, over all its tokens."""
    draft = drafting((), rng)
    verdict = verifier.verify(draft, View(p, (), draft, rng), rng)
    assert len(verdict.overrides) == len(verdict.lost) == len(verdict.path) + 1
    return sum(verdict.overrides), sum(verdict.lost)
