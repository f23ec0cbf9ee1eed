"""What every verifier promises, whatever the draft: one suite over all of them, in production arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from forerun.cascade.mixtures import RULES
from forerun.cascade.typical import Typical
from forerun.cascade.verdict import LossyVerdict
from forerun.cascade.verifier import Cascade
from forerun.core.draft import EMPTY, ROOT, Draft
from forerun.core.noise import Domain, Noise
from forerun.core.protocols import Verifier
from forerun.core.rng import StepRng
from forerun.core.step import Verdict
from forerun.verifiers.block import Block
from forerun.verifiers.keyed import Keyed
from forerun.verifiers.kseq import KSeq
from forerun.verifiers.rejection import Rejection
from forerun.verifiers.traversal import Traversal

VERIFIERS: dict[str, Callable[[], Verifier]] = {
    "keyed": Keyed,
    "rejection": Rejection,
    "block": Block,
    "traversal": Traversal,
    "kseq": KSeq,
    "typical": Typical,
    **{f"cascade {rule}": lambda rule=rule: Cascade(rule, 0.3) for rule in RULES},  # type: ignore[misc]
    "cascade in traversal": lambda: Cascade("v3", 0.3, Traversal()),
}
LOSSLESS = [name for name, make in VERIFIERS.items() if make().exact]
VOCAB = 5


@pytest.fixture(params=VERIFIERS)
def verifier(request: pytest.FixtureRequest) -> Verifier:
    return VERIFIERS[request.param]()


@dataclass
class Table:
    """A target with one distribution per node."""

    table: dict[int, NDArray[Any]]
    seed: int = 0

    def probs(self, node: int) -> NDArray[Any]:
        return self.table[node]

    def untruncated(self, node: int) -> NDArray[Any]:
        return self.table[node]

    def choose(self, node: int) -> int:
        with np.errstate(divide="ignore"):
            return Noise(self.seed).stream(Domain.TOKEN).race(np.log(self.table[node]), node + 2)


def table(draft: Draft, seed: int, sharp: float = 3.0, zeros: bool = True) -> Table:
    random = np.random.default_rng(seed)
    return Table({node: some_probs(random, sharp, zeros) for node in range(ROOT, len(draft))}, seed)


def some_probs(random: np.random.Generator, sharp: float, zeros: bool) -> NDArray[np.float64]:
    weights = np.exp(random.normal(0, sharp, VOCAB))
    if zeros:
        weights[random.random(VOCAB) < 0.3] = 0
        weights[random.integers(VOCAB)] += 1e-3
    probs: NDArray[np.float64] = weights / weights.sum()
    return probs


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """Trees of up to 10 nodes, with q (shared by siblings, in either precision), without, or with some."""
    count = draw(st.integers(0, 10))
    parents = [draw(st.integers(-1, node - 1)) for node in range(count)]
    with_replacement = draw(st.booleans())
    single = draw(st.booleans())
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shared: dict[int, NDArray[Any]] = {}
    tokens: list[int] = []
    q: list[NDArray[Any] | None] = []
    for node, parent in enumerate(parents):
        probs = shared.setdefault(parent, some_probs(random, 2.0, zeros=True))
        if single and probs.dtype == np.float64:
            probs = shared[parent] = probs.astype(np.float32)
        taken = (
            [] if with_replacement else [tokens[n] for n in range(node) if parents[n] == parent and q[n] is not None]
        )
        left = np.delete(np.arange(VOCAB), taken)
        left = left[probs[left] > 0]
        if len(left) and draw(st.integers(0, 4)):
            tokens.append(int(left[np.argmax(np.log(probs[left]) + random.gumbel(size=len(left)))]))
            q.append(probs)
        else:
            tokens.append(int(random.integers(VOCAB)))
            q.append(None)
    return Draft(tuple(tokens), tuple(parents), tuple(q) if any(x is not None for x in q) else None, with_replacement)


def tokens_of(draft: Draft, verdict: Verdict) -> list[int]:
    return [*(draft.tokens[node] for node in verdict.path), verdict.bonus]


def test_it_says_what_it_is(verifier: Verifier) -> None:
    assert verifier.name
    assert isinstance(verifier.exact, bool)
    assert verifier.keyed == (verifier.name == "keyed")


def test_names_are_unique() -> None:
    names = [make().name for name, make in VERIFIERS.items() if not name.startswith("cascade")]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", VERIFIERS)
@given(draft=drafts(), seed=st.integers(0, 10**6))
@settings(max_examples=60)
def test_a_verdict_is_a_path_and_a_token(name: str, draft: Draft, seed: int) -> None:
    target = table(draft, seed)
    verdict = VERIFIERS[name]().verify(draft, target, StepRng(Noise(seed), 7))
    node = ROOT
    for step in verdict.path:
        assert draft.parents[step] == node
        node = step
    assert 0 <= verdict.bonus < VOCAB
    assert all(type(token) is int for token in (*verdict.path, verdict.bonus))
    if isinstance(verdict, LossyVerdict):
        tokens = len(verdict.path) + 1
        assert len(verdict.overrides) in (0, tokens)
        assert len(verdict.lost) in (0, tokens)
        assert all(0 <= lost <= 1 for lost in verdict.lost)


@pytest.mark.parametrize("name", LOSSLESS)
@given(draft=drafts(), seed=st.integers(0, 10**6))
@settings(max_examples=60)
def test_what_the_target_cannot_say_is_never_said(name: str, draft: Draft, seed: int) -> None:
    target = table(draft, seed)
    verdict = VERIFIERS[name]().verify(draft, target, StepRng(Noise(seed), 7))
    node = ROOT
    for step, token in zip((*verdict.path, None), tokens_of(draft, verdict), strict=True):
        assert target.table[node][token] > 0
        node = ROOT if step is None else step
    assert not isinstance(verdict, LossyVerdict)


@pytest.mark.parametrize("name", LOSSLESS)
@given(draft=drafts(), seed=st.integers(0, 10**6))
@settings(max_examples=40)
def test_a_greedy_target_is_followed_to_the_letter(name: str, draft: Draft, seed: int) -> None:
    """With one-hot distributions every lossless rule says the same: the target's favorites, as far as they were drafted."""
    target = table(draft, seed)
    for node, probs in target.table.items():
        target.table[node] = np.where(np.arange(VOCAB) == np.argmax(probs), 1.0, 0.0)
    verdict = VERIFIERS[name]().verify(draft, target, StepRng(Noise(seed), 7))
    node = ROOT
    for step, token in zip((*verdict.path, None), tokens_of(draft, verdict), strict=True):
        assert token == np.argmax(target.table[node])
        node = ROOT if step is None else step
    if name != "traversal" and name != "block":  # these may sit on another of two siblings with one token
        last = verdict.path[-1] if verdict.path else ROOT
        assert verdict.bonus not in [draft.tokens[child] for child in draft.children(last)] or draft.q is not None


def test_without_a_draft_it_is_plain_decoding(verifier: Verifier) -> None:
    for seed in range(20):
        target = table(EMPTY, seed)
        verdict = verifier.verify(EMPTY, target, StepRng(Noise(seed), 3))
        assert verdict.path == ()
        assert target.table[ROOT][verdict.bonus] > 0
        assert not any(getattr(verdict, "overrides", ())), "nothing was given up"
        assert not any(getattr(verdict, "lost", ()))


def test_the_same_noise_gives_the_same_verdict_and_nothing_is_changed(verifier: Verifier) -> None:
    random = np.random.default_rng(5)
    q = some_probs(random, 1, zeros=False)
    below = some_probs(random, 1, zeros=False)
    draft = Draft((0, 1, 2, 3), (-1, -1, 0, 0), (q, q, below, below))
    kept = [array.copy() for array in (q, below)]
    for seed in range(30):
        target = table(draft, seed)
        originals = {node: probs.copy() for node, probs in target.table.items()}
        verdicts = {verifier.verify(draft, target, StepRng(Noise(seed), 3)) for _ in range(2)}
        assert len(verdicts) == 1
        assert all(np.array_equal(probs, originals[node]) for node, probs in target.table.items())
    assert np.array_equal(kept[0], q)
    assert np.array_equal(kept[1], below)


def test_a_draft_that_is_always_right_is_taken_whole(verifier: Verifier) -> None:
    """q = p along a chain: nothing can be refused (keyed and typical judge otherwise)."""
    if verifier.name in ("keyed", "typical"):
        pytest.skip("takes what the target chose, or finds typical")
    random = np.random.default_rng(0)
    for seed in range(20):
        q = [some_probs(random, 1, zeros=False) for _ in range(4)]
        draft = Draft.chain([int(np.argmax(each)) for each in q], q)
        target = Table({**{node - 1: each for node, each in enumerate(q)}, 3: some_probs(random, 1, zeros=False)})
        verdict = verifier.verify(draft, target, StepRng(Noise(seed), 9))
        assert tokens_of(draft, verdict)[:4] == list(draft.tokens)


def test_a_very_long_chain(verifier: Verifier) -> None:
    """No recursion, no underflow: 3,000 nodes of which all but the last can be right."""
    nodes = 3000
    hot = np.where(np.arange(VOCAB) == 2, 1.0, 0.0)
    draft = Draft.chain([2] * nodes, [hot] * nodes)
    target = Table(dict.fromkeys(range(ROOT, nodes), hot))
    target.table[nodes - 2] = np.where(np.arange(VOCAB) == 1, 1.0, 0.0)
    verdict = verifier.verify(draft, target, StepRng(Noise(0), 3))
    said = tokens_of(draft, verdict)
    if verifier.name == "cascade":  # sides with the drafter where the target is as sure of something else
        assert len(said) >= nodes - 1
    else:
        assert said == [2] * (nodes - 1) + [1]


@pytest.mark.parametrize("wide", [np.float32, np.float64])
def test_rounding_never_lets_an_impossible_token_through(verifier: Verifier, wide: type) -> None:
    """p and q agree but for their last bits, so a refusal leaves next to nothing to draw from."""
    if not verifier.exact:
        pytest.skip("lossless rules only")
    p = np.array([0.1, 0.2, 0.0, 0.3, 0.4])
    p /= p.sum()
    for seed in range(300):
        noise = np.random.default_rng(seed).normal(0, 1e-16, VOCAB)
        q: NDArray[Any] = np.abs(p * (1 + noise)).astype(wide)
        token = seed % VOCAB
        for with_replacement in (True, False):
            draft = Draft((token, (token + 1) % VOCAB), (-1, -1), (q, q), with_replacement)
            target = Table(dict.fromkeys(range(-1, 2), p), seed)
            verdict = verifier.verify(draft, target, StepRng(Noise(seed), 3))
            assert 2 not in tokens_of(draft, verdict)
