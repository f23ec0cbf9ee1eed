"""What the published rules accept on average: the papers' figures, enumerated exactly."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from forerun.core.draft import Draft
from forerun.core.protocols import Verifier
from forerun.core.step import Verdict
from forerun.verifiers.block import Block
from forerun.verifiers.keyed import Keyed
from forerun.verifiers.kseq import KSeq, division_factor
from forerun.verifiers.rejection import Rejection
from forerun.verifiers.traversal import Traversal
from tests.exact.drafting import chain, looked_up, tree
from tests.exact.enumeration import (
    Drafting,
    Replay,
    Table,
    View,
    expected_accepted,
    fractions,
    random_table,
    step_probs,
)

TOY_P, TOY_Q = Table(3, lambda text: fractions(5, 3, 2)), Table(3, lambda text: fractions(2, 5, 3))


@pytest.mark.parametrize(
    ("alpha", "length", "tokens"),
    [(6, 2, 1.96), (7, 3, 2.53), (8, 2, 2.44), (8, 5, 3.69), (9, 2, 2.71), (9, 10, 6.86)],
)
def test_rejection_gives_the_tokens_of_leviathan_table_1(alpha: int, length: int, tokens: float) -> None:
    """E[tokens] = (1 - a^(g+1)) / (1 - a), at no cost of drafting (2211.17192, table 1)."""
    p = Table(2, lambda text: fractions(alpha, 10 - alpha))
    q = Table(2, lambda text: fractions(1, 0))
    a = Fraction(alpha, 10)
    got = 1 + expected_accepted(Rejection(), p, chain(q, length))
    assert got == (1 - a ** (length + 1)) / (1 - a)
    assert float(got) == pytest.approx(tokens, abs=0.005)


@pytest.mark.parametrize("rule", [Rejection(), Block(), Traversal(), KSeq()], ids=lambda rule: rule.name)
def test_one_drafted_token_is_accepted_with_1_minus_tv(rule: Verifier) -> None:
    assert expected_accepted(rule, TOY_P, chain(TOY_Q, 1)) == Fraction(7, 10)


@pytest.mark.parametrize(
    ("length", "token", "block"),
    [(1, "2/3", "2/3"), (2, "10/9", "11/9"), (3, "38/27", "5/3")],
)
def test_block_verification_figures(length: int, token: str, block: str) -> None:
    """q = (2/3, 1/3), p = (1/3, 2/3), independent of the text (2403.10444)."""
    p, q = Table(2, lambda text: fractions(1, 2)), Table(2, lambda text: fractions(2, 1))
    assert expected_accepted(Rejection(), p, chain(q, length)) == Fraction(token)
    assert expected_accepted(Block(), p, chain(q, length)) == Fraction(block)
    assert expected_accepted(Traversal(), p, chain(q, length)) == Fraction(block)


@pytest.mark.parametrize("seed", range(4))
def test_block_never_accepts_less_and_traversal_is_it_on_chains(seed: int) -> None:
    p, q = random_table(f"p{seed}", 3), random_table(f"q{seed}", 3)
    block = step_probs(Block(), p, chain(q, 2), ())
    assert step_probs(Traversal(), p, chain(q, 2), ()) == block
    accepted = sum((len(tokens) - 1) * probability for tokens, probability in block.items())
    assert accepted >= expected_accepted(Rejection(), p, chain(q, 2))


def test_block_gains_nothing_from_one_hot_drafts_and_then_is_rejection() -> None:
    p = random_table("p", 3)
    assert step_probs(Block(), p, looked_up(3, (1, 1)), ()) == step_probs(Rejection(), p, looked_up(3, (1, 1)), ())
    told = looked_up(3, (1, 1), q=True)
    assert expected_accepted(Block(), p, told) == expected_accepted(Rejection(), p, told)


def test_block_on_a_tree_is_traversal() -> None:
    p, q = random_table("p", 2), random_table("q", 2)
    assert step_probs(Block(), p, tree(q, (2, 1)), ()) == step_probs(Traversal(), p, tree(q, (2, 1)), ())


def test_mean_accepted_orders_the_rules_as_published() -> None:
    """Token < block < recursive without replacement < traversal, on random models (2505.12398)."""
    means = []
    cases: list[tuple[Verifier, tuple[int, ...]]] = [
        (Rejection(), (1, 1)),
        (Block(), (1, 1)),
        (Rejection(), (2, 1)),
        (Traversal(), (2, 1)),
    ]
    for rule, widths in cases:
        pairs = [(random_table(f"p{n}", 3, 0, 6), random_table(f"q{n}", 3, 0, 6)) for n in range(8)]
        means.append(float(sum(expected_accepted(rule, p, tree(q, widths)) for p, q in pairs)) / len(pairs))
    assert means == sorted(set(means))


def test_kseq_figures() -> None:
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.3])
    assert division_factor(p, q, 2) == pytest.approx(1.4568, abs=5e-5)


@pytest.mark.parametrize(("k", "accepted", "digits"), [(2, 0.7914, 5e-5), (4, 0.906, 5e-4)])
def test_kseq_accepts_what_the_figure_says(k: int, accepted: float, digits: float) -> None:
    drafting = tree(TOY_Q, (k,), with_replacement=True)
    assert float(expected_accepted(KSeq(), TOY_P, drafting)) == pytest.approx(accepted, abs=digits)


@pytest.mark.parametrize("k", [1, 2, 3, 8])
def test_kseq_rho_is_in_its_range_and_rounded_up(k: int) -> None:
    for seed in range(20):
        p, q = random_table("p", 4, 0, 5).probs((seed,)), random_table("q", 4, 0, 5).probs((seed,))
        rho = division_factor(p, q, k)
        assert isinstance(rho, Fraction)
        assert 1 <= rho <= k * (1 + Fraction(1, 10**8))
        beta = np.minimum(q, p / rho).sum()
        assert 1 - (1 - beta) ** k <= rho * beta


def test_kseq_of_distributions_that_never_meet_and_of_equal_ones() -> None:
    one, other = Table(2, lambda text: fractions(1, 0)), Table(2, lambda text: fractions(0, 1))
    even = Table(2, lambda text: fractions(1, 1))
    assert expected_accepted(KSeq(), one, tree(other, (3,), with_replacement=True)) == 0
    assert float(expected_accepted(KSeq(), even, tree(even, (3,), with_replacement=True))) == 1.0


@pytest.mark.parametrize(
    "drafting",
    [tree(TOY_Q, (2, 1)), looked_up(3, (2, 2)), chain(TOY_Q, 2)],
    ids=["without replacement", "deterministic", "one child"],
)
def test_kseq_falls_to_the_recursive_rule(drafting: Drafting) -> None:
    assert step_probs(KSeq(), TOY_P, drafting, ()) == step_probs(Rejection(), TOY_P, drafting, ())


def test_keyed_follows_the_choice_and_asks_for_no_randomness() -> None:
    class Fixed(View):
        def choose(self, node: int) -> int:
            return [1, 2, 0, 0][node + 1]

    draft = Draft((0, 1, 1, 2, 2), (-1, -1, -1, 1, 1))
    silent = Replay([])
    view = Fixed(TOY_P, (), draft, silent)
    # After the root it chooses 1: the first of two such siblings. After node 1 it chooses 0, which was not drafted.
    assert Keyed().verify(draft, view, silent) == Verdict((1,), 0)
    assert silent.taken == []
