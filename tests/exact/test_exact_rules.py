"""Every exact rule, every way to draft, enumerated: the committed text is distributed as the target's, in fractions."""

from __future__ import annotations

import pytest

from forerun.core.protocols import Verifier
from forerun.verifiers.block import Block
from forerun.verifiers.keyed import Keyed
from forerun.verifiers.kseq import KSeq
from forerun.verifiers.rejection import Rejection
from forerun.verifiers.traversal import Traversal
from tests.exact.drafting import chain, competing, fitted, fixed, looked_up, merged, mixed, sometimes, stopping, tree
from tests.exact.enumeration import Drafting, Table, fractions, greedy, plain_probs, random_table, text_probs

EXACT: dict[str, Verifier] = {v.name: v for v in (Keyed(), Rejection(), Block(), Traversal(), KSeq())}

P2, Q2 = random_table("p", 2), random_table("q", 2)
P3, Q3 = random_table("p", 3), random_table("q", 3)
# Zeros on both sides: tokens that the target cannot emit are drafted, and some that it can never are.
P2_ZEROS, Q2_ZEROS = random_table("p", 2, lowest=0, highest=2), random_table("q", 2, lowest=0, highest=2)
P3_ZEROS, Q3_ZEROS = random_table("p", 3, lowest=0, highest=2), random_table("q", 3, lowest=0, highest=2)

PAIRS: dict[str, tuple[Table, Table]] = {
    "two": (P2, Q2),
    "three": (P3, Q3),
    "zeros of two": (P2_ZEROS, Q2_ZEROS),
    "zeros of three": (P3_ZEROS, Q3_ZEROS),
    "equal": (P3, P3),
    "greedy target": (greedy(P3), Q3),
    "greedy drafter": (P3, greedy(Q3)),
    "both greedy": (greedy(P3), greedy(Q3)),
}


@pytest.fixture(params=EXACT)
def rule(request: pytest.FixtureRequest) -> Verifier:
    return EXACT[request.param]


CHAINS = [(pair, length) for pair in PAIRS for length in (1, 2, 3) if length < 3 or PAIRS[pair][0].vocab == 2]


@pytest.mark.parametrize(("pair", "length"), CHAINS)
def test_chain(rule: Verifier, pair: str, length: int) -> None:
    p, q = PAIRS[pair]
    total = length + 2
    assert text_probs(rule, p, chain(q, length), total) == plain_probs(p, total)


@pytest.mark.parametrize("with_replacement", [True, False], ids=["with replacement", "without replacement"])
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("widths", [(2,), (3,), (2, 1), (1, 2)], ids=str)
def test_tree(rule: Verifier, pair: str, widths: tuple[int, ...], with_replacement: bool) -> None:
    p, q = PAIRS[pair]
    drafting = tree(q, widths, with_replacement=with_replacement)
    total = len(widths) + 1
    # One step, then plain sampling, tells as much as many steps, which chains and small trees go through.
    assert text_probs(rule, p, drafting, total, steps=1) == plain_probs(p, total)


@pytest.mark.parametrize("with_replacement", [True, False], ids=["with replacement", "without replacement"])
@pytest.mark.parametrize("pair", ["two", "zeros of two"])
def test_two_by_two(rule: Verifier, pair: str, with_replacement: bool) -> None:
    p, q = PAIRS[pair]
    drafting = tree(q, (2, 2), with_replacement=with_replacement)
    assert text_probs(rule, p, drafting, 3, steps=1) == plain_probs(p, 3)


@pytest.mark.parametrize("pair", ["zeros of three"])
def test_two_by_two_of_three_tokens(rule: Verifier, pair: str) -> None:
    p, q = PAIRS[pair]
    assert text_probs(rule, p, tree(q, (2, 2)), 3, steps=1) == plain_probs(p, 3)


ODD: dict[str, tuple[Table, Drafting]] = {
    "deterministic chain": (P3, looked_up(3, (1, 1, 1))),
    "deterministic tree": (P3, looked_up(3, (2, 2))),
    "deterministic tree with q": (P3, looked_up(3, (2, 2), q=True)),
    "the same tree each time": (P2, fixed((0, 1, 1, 0, 0), (-1, -1, 0, 1, 3))),
    "repeated siblings": (P2, fixed((0, 0, 1, 0), (-1, -1, 0, 1))),
    "deterministic and drawn siblings": (P2, mixed(Q2)),
    "deterministic and drawn siblings, zeros": (P3_ZEROS, mixed(Q3_ZEROS)),
    "two drafters merged": (P3, merged(Q3, Q3_ZEROS)),
    "siblings compete": (P3, competing(Q3)),
    "siblings compete, with replacement": (P2, competing(Q2, with_replacement=True)),
    "stops after a weak token": (P3, stopping(Q3, 3)),
    "plain decoding in between": (P3, sometimes(tree(Q3, (2, 1)))),
    "cut to three nodes": (P2, fitted(tree(Q2, (2, 2)), nodes=3, depth=9, tree=True)),
    "cut to one level": (P2, fitted(tree(Q2, (2, 2)), nodes=9, depth=1, tree=True)),
    "cut to a chain": (P2, fitted(tree(Q2, (2, 2)), nodes=9, depth=9, tree=False)),
}


@pytest.mark.parametrize("case", ODD)
def test_other_drafts(rule: Verifier, case: str) -> None:
    p, drafting = ODD[case]
    total = 4 if p.vocab == 2 else 3
    assert text_probs(rule, p, drafting, total) == plain_probs(p, total)


def test_many_steps(rule: Verifier) -> None:
    assert text_probs(rule, P2, tree(Q2, (2, 1)), 7) == plain_probs(P2, 7)


def test_a_long_unlikely_chain_comes_back(rule: Verifier) -> None:
    """Block and traversal weights fall far and rise again."""
    p = Table(2, lambda text: fractions(1, 40) if len(text) < 2 else fractions(40, 1))
    q = Table(2, lambda text: fractions(40, 1) if len(text) < 2 else fractions(1, 40))
    assert text_probs(rule, p, chain(q, 4), 5) == plain_probs(p, 5)
