"""Known ways to get it wrong, planted on purpose: the comparison that the exact suite makes must fail for each.

Every one has been a real bug somewhere in the field. A rule that passes here is a hole in the suite.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from forerun.cascade.typical import Typical
from forerun.core.draft import ROOT, Draft
from forerun.core.protocols import Rng, Target, Verifier
from forerun.core.step import Verdict
from forerun.verifiers.block import Block, joint_weights, stopping
from forerun.verifiers.distributions import Probs, acceptance, excess, normalized, proposal
from forerun.verifiers.kseq import KSeq
from forerun.verifiers.rejection import Rejection
from forerun.verifiers.traversal import Traversal
from tests.exact.drafting import chain, cousins, looked_up, tree
from tests.exact.enumeration import Drafting, Table, Text, fractions, plain_probs, random_table, text_probs

P, Q = random_table("p", 3), random_table("q", 3)
TOY_P = Table(3, lambda text: fractions(5, 3, 2))
TOY_Q = Table(3, lambda text: fractions(2, 5, 3))
# A path of weight .8, after which two tokens are left over in different shares under the weight and without it.
STEP_P = Table(3, lambda text: fractions(9, 9, 2) if text else fractions(4, 3, 3))
STEP_Q = Table(3, lambda text: fractions(1, 3, 6) if text else fractions(5, 3, 2))


def is_exact(verifier: Verifier, model: Table, drafting: Drafting, length: int = 3) -> bool:
    """The comparison under test."""
    return text_probs(verifier, model, drafting, length) == plain_probs(model, length)


class Wrong:
    """A rule under test; each subclass has one mistake."""

    name = "wrong"
    exact = True
    keyed = False

    def verify(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        path: list[int] = []
        node = ROOT
        while True:
            accepted, left = self.children(draft, node, target.probs(node), rng)
            if accepted is None:
                return Verdict(tuple(path), rng.sample(left))
            path.append(accepted)
            node = accepted

    def children(self, draft: Draft, node: int, p: Probs, rng: Rng) -> tuple[int | None, Probs]:
        raise NotImplementedError


class IndependentTests(Wrong):
    """Siblings tested against the original p, as if each were alone."""

    def children(self, draft: Draft, node: int, p: Probs, rng: Rng) -> tuple[int | None, Probs]:
        residual = p
        for child in draft.children(node):
            token, q = draft.tokens[child], proposal(draft, child, p)
            if rng.accept(acceptance(p[token], q[token])):
                return child, p
            residual = normalized(excess(residual, q), residual)
        return None, residual


class ResidualFromTarget(Wrong):
    """After a refusal the bonus comes from p instead of norm((p - q)+)."""

    def children(self, draft: Draft, node: int, p: Probs, rng: Rng) -> tuple[int | None, Probs]:
        for child in draft.children(node):
            token, q = draft.tokens[child], proposal(draft, child, p)
            if rng.accept(acceptance(p[token], q[token])):
                return child, p
        return None, p


class RawRatio(Wrong):
    """The ratio uses q before temperature; the draft was drawn after it."""

    def children(self, draft: Draft, node: int, p: Probs, rng: Rng) -> tuple[int | None, Probs]:
        for child in draft.children(node):
            token, q = draft.tokens[child], proposal(draft, child, p)
            raw = np.array([Fraction(1, 1 + i) for i in range(len(q))], dtype=object) * q
            raw = raw / raw.sum()
            if rng.accept(acceptance(p[token], raw[token])):
                return child, p
            p = normalized(excess(p, raw), p)
        return None, p


class ForgetsReplacement(Wrong):
    """Siblings drawn without replacement, judged as if drawn with it."""

    def children(self, draft: Draft, node: int, p: Probs, rng: Rng) -> tuple[int | None, Probs]:
        for child in draft.children(node):
            assert draft.q is not None
            q, token = draft.q[child], draft.tokens[child]
            assert q is not None
            if rng.accept(acceptance(p[token], q[token])):
                return child, p
            p = normalized(excess(p, q), p)
        return None, p


class ReusedNumber(Wrong):
    """One uniform number for all siblings of a node: a refusal tells something about the next test."""

    def children(self, draft: Draft, node: int, p: Probs, rng: Rng) -> tuple[int | None, Probs]:
        refused_below = Fraction(0)
        for child in draft.children(node):
            token, q = draft.tokens[child], proposal(draft, child, p)
            bar = acceptance(p[token], q[token])
            if bar > refused_below:
                if rng.accept((bar - refused_below) / (1 - refused_below)):
                    return child, p
                refused_below = bar
            p = normalized(excess(p, q), p)
        return None, p


class AcceptsByThreshold(Wrong):
    """Accepts what the target finds likely enough, and calls that lossless."""

    def children(self, draft: Draft, node: int, p: Probs, rng: Rng) -> tuple[int | None, Probs]:
        for child in draft.children(node):
            token, q = draft.tokens[child], proposal(draft, child, p)
            if 2 * p[token] >= q[token]:
                return child, p
            p = normalized(excess(p, q), p)
        return None, p


class BonusFromDrafter(Wrong):
    """After full acceptance the extra token comes from the drafter's last distribution."""

    def children(self, draft: Draft, node: int, p: Probs, rng: Rng) -> tuple[int | None, Probs]:
        children = draft.children(node)
        if not children and node != ROOT:
            return None, proposal(draft, node, p)
        for child in children:
            token, q = draft.tokens[child], proposal(draft, child, p)
            if rng.accept(acceptance(p[token], q[token])):
                return child, p
            p = normalized(excess(p, q), p)
        return None, p


class DropsLastAccepted(Wrong):
    """Refuses a token that it had accepted because of what it is."""

    def verify(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        verdict = Rejection().verify(draft, target, rng)
        if verdict.path and draft.tokens[verdict.path[-1]] == 0:
            kept = verdict.path[:-1]
            return Verdict(kept, rng.sample(target.probs(kept[-1] if kept else ROOT)))
        return verdict


class StopsAtFirstFailure(Wrong):
    """Block verification's probabilities, tested from the front and stopped at the first failure."""

    def verify(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        probs = [target.probs(node) for node in range(ROOT, len(draft))]
        q = [proposal(draft, node, probs[0]) for node in range(len(draft))]
        weights = joint_weights(draft, probs, q)
        kept = 0
        while kept < len(draft):
            at = kept + 1
            last = at == len(draft)
            bar = weights[at] if last else stopping(weights[at], excess(weights[at] * probs[at], q[at]).sum())
            if not rng.accept(bar):
                break
            kept = at
        if kept == len(draft):
            return Verdict(tuple(range(kept)), rng.sample(probs[kept]))
        residual = normalized(excess(weights[kept] * probs[kept], q[kept]), probs[kept])
        return Verdict(tuple(range(kept)), rng.sample(residual))


class TokenResidualInBlock(Wrong):
    """Block verification that draws the correction from norm((p - q)+) instead of norm((p_tau p - q)+)."""

    def verify(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        verdict = Block().verify(draft, target, rng)
        kept = len(verdict.path)
        if kept == len(draft):
            return verdict
        p = target.probs(kept - 1)
        return Verdict(verdict.path, rng.sample(normalized(excess(p, proposal(draft, kept, p)), p)))


class LeavesUpWithoutWeights(Wrong):
    """Tests leaves from the bottom up, but with each token's own ratio instead of the path's weight."""

    def verify(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        for leaf in reversed(range(len(draft))):
            p = target.probs(draft.parents[leaf])
            if rng.accept(acceptance(p[draft.tokens[leaf]], proposal(draft, leaf, p)[draft.tokens[leaf]])):
                return Verdict(draft.path_to(leaf), rng.sample(target.probs(leaf)))
        return Verdict((), rng.sample(target.probs(ROOT)))


class SmallRho(Wrong):
    """K-SEQ with rho = 1: each sibling tested with min(1, p / q), and what is missing clipped."""

    def children(self, draft: Draft, node: int, p: Probs, rng: Rng) -> tuple[int | None, Probs]:
        children = draft.children(node)
        if not children:
            return None, p
        q = proposal(draft, children[0], p)
        for child in children:
            token = draft.tokens[child]
            if rng.accept(acceptance(p[token], q[token])):
                return child, p
        taken = np.minimum(q, p)
        beta = taken.sum()
        return None, normalized(np.maximum(p - taken * (1 - (1 - beta) ** len(children)) / beta, 0), p)


class ReusedResidualNoise(Wrong):
    """The correction is drawn with the number that had drawn the refused token: it knows where that number lies."""

    def verify(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        assert len(draft) == 1
        p = target.probs(ROOT)
        q, token = proposal(draft, 0, p), draft.tokens[0]
        if rng.accept(acceptance(p[token], q[token])):
            return Verdict((0,), rng.sample(target.probs(0)))
        residual = normalized(excess(p, q), p)
        low, high = sum(q[:token]), sum(q[: token + 1])
        ends = np.cumsum(residual)
        overlap = [max(Fraction(0), min(high, end) - max(low, end - r)) for end, r in zip(ends, residual, strict=True)]
        return Verdict((), rng.sample(np.array(overlap, dtype=object)))


WRONG_RULES: dict[str, tuple[Verifier, Drafting]] = {
    "independent tests": (IndependentTests(), tree(Q, (2,), with_replacement=True)),
    "independent tests, three": (IndependentTests(), tree(Q, (3,), with_replacement=True)),
    "residual from the target": (ResidualFromTarget(), chain(Q, 1)),
    "raw q in the ratio": (RawRatio(), chain(Q, 1)),
    "forgets replacement": (ForgetsReplacement(), tree(Q, (2,))),
    "reused number": (ReusedNumber(), tree(Q, (2,))),
    "accepts by a threshold": (AcceptsByThreshold(), chain(Q, 1)),
    "bonus from the drafter": (BonusFromDrafter(), chain(Q, 1)),
    "drops the last accepted token": (DropsLastAccepted(), chain(Q, 2)),
    "block, stopped at the first failure": (StopsAtFirstFailure(), chain(Q, 2)),
    "leaves up without weights": (LeavesUpWithoutWeights(), tree(Q, (1, 1))),
    "K-SEQ with too small a rho": (SmallRho(), tree(Q, (2,), with_replacement=True)),
    "reused residual noise": (ReusedResidualNoise(), chain(Q, 1)),
    "typical acceptance taken for exact": (Typical(), looked_up(3, (1,))),
}


@pytest.mark.parametrize("case", WRONG_RULES)
def test_a_wrong_rule_is_caught(case: str) -> None:
    verifier, drafting = WRONG_RULES[case]
    assert not is_exact(verifier, P, drafting)


def test_the_wrong_residual_in_block_verification_is_caught() -> None:
    assert is_exact(Block(), STEP_P, chain(STEP_Q, 2))
    assert not is_exact(TokenResidualInBlock(), STEP_P, chain(STEP_Q, 2))


def drops_drawn(drafter: Table, length: int, dropped: Callable[[int, Probs], bool]) -> Drafting:
    """A chain whose drafter throws a drawn token away because of its value."""

    def drafting(text: Text, rng: Rng) -> Draft:
        whole = chain(drafter, length)(text, rng)
        assert whole.q is not None
        for node, (token, q) in enumerate(zip(whole.tokens, whole.q, strict=True)):
            assert q is not None
            if dropped(token, q):
                return whole.keep(range(node))
        return whole

    return drafting


def sorted_siblings(drafter: Table) -> Drafting:
    """Siblings drawn without replacement, then put in order of probability."""

    def drafting(text: Text, rng: Rng) -> Draft:
        drawn = tree(drafter, (2,))(text, rng)
        q = drafter.probs(text)
        tokens = tuple(sorted(drawn.tokens, key=lambda token: -q[token]))
        return Draft(tokens, drawn.parents, drawn.q, drawn.with_replacement)

    return drafting


def deduplicated(drafter: Table) -> Drafting:
    """A deterministic child first, then a drawn one that is left out when it repeats it."""

    def drafting(text: Text, rng: Rng) -> Draft:
        q = drafter.probs(text)
        token = rng.sample(q)
        return Draft((0,), (-1,), (None,)) if token == 0 else Draft((0, token), (-1, -1), (None, q))

    return drafting


def peeking(model: Table, drafter: Table) -> Drafting:
    """A length decided after looking at the tokens drafted: long when they look good, else nothing."""

    def drafting(text: Text, rng: Rng) -> Draft:
        whole = chain(drafter, 2)(text, rng)
        return whole if whole.tokens[0] == int(np.argmax(model.probs(text))) else whole.keep(())

    return drafting


WRONG_DRAFTERS: dict[str, Drafting] = {
    "drops a drawn token by its value": drops_drawn(Q, 2, lambda token, q: token == 0),
    "drops a drawn token of low probability": drops_drawn(Q, 2, lambda token, q: bool(q[token] < q.max())),
    "sorts siblings": sorted_siblings(Q),
    "leaves out a drawn repeat": deduplicated(Q),
    "decides the length after drawing": peeking(P, Q),
}


@pytest.mark.parametrize("rule", [Rejection(), Block(), Traversal(), KSeq()], ids=lambda rule: rule.name)
@pytest.mark.parametrize("case", WRONG_DRAFTERS)
def test_a_wrong_drafter_is_caught(rule: Verifier, case: str) -> None:
    assert not is_exact(rule, P, WRONG_DRAFTERS[case])


def test_one_draw_for_two_branches_is_caught_where_both_are_looked_at() -> None:
    """Drafters that draw by position alone do this. Rejection never looks at the children of what it refused."""
    assert is_exact(Rejection(), P, cousins(Q))
    assert not is_exact(Traversal(), P, cousins(Q))


def test_dropping_the_second_token_gives_55_to_45() -> None:
    p = Table(2, lambda text: fractions(1, 1))
    q = Table(2, lambda text: fractions(9, 1))
    drafting = drops_drawn(q, 1, lambda token, q: token == 1)
    assert text_probs(Rejection(), p, drafting, 1) == {(0,): Fraction(55, 100), (1,): Fraction(45, 100)}


def test_right_rules_pass_the_same_comparison() -> None:
    for rule in (Rejection(), Block(), Traversal(), KSeq()):
        assert is_exact(rule, P, tree(Q, (2,)))
        assert is_exact(rule, TOY_P, chain(TOY_Q, 2))
