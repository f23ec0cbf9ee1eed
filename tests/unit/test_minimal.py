"""The teaching text is right: enumerated against plain sampling, and used as an oracle for the rejection rule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from forerun import minimal
from forerun.core.protocols import Rng
from forerun.verifiers.rejection import Rejection
from tests.exact.drafting import chain
from tests.exact.enumeration import Table, Text, TextProbs, every_path, plain_probs, random_table, step_probs

P, Q = random_table("p", 2), random_table("q", 2)


def model(table: Table) -> minimal.Model:
    return lambda tokens: table.probs(tuple(tokens))


def probs_of(run: Callable[[Any], Sequence[int]]) -> TextProbs:
    law: TextProbs = defaultdict(Fraction)
    for tokens, probability in every_path(lambda rng: tuple(run(rng))):
        law[tokens] += probability
    return dict(law)


def test_plain_has_the_distribution() -> None:
    assert probs_of(lambda rng: minimal.plain(model(P), [], 3, rng)) == plain_probs(P, 3)


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_speculative_has_the_probs_of_plain(ahead: int) -> None:
    def run(rng: Any) -> Text:
        return tuple(minimal.speculative(model(P), model(Q), [], 3, ahead, rng)[0][:3])

    assert probs_of(run) == plain_probs(P, 3)


@pytest.mark.parametrize("vocab", [2, 3])
def test_oracle_for_the_rejection_rule(vocab: int) -> None:
    p, q = random_table("p", vocab, lowest=0, highest=2), random_table("q", vocab)

    def one_step(rng: Rng) -> list[int]:
        told = minimal.draft(model(q), [], 2, rng)  # type: ignore[arg-type]
        return minimal.verify(model(p), [], told, rng)  # type: ignore[arg-type]

    assert probs_of(one_step) == step_probs(Rejection(), p, chain(q, 2), ())


@pytest.mark.parametrize("ahead", [0, 1, 4])
def test_keyed_text_is_the_plain_text(ahead: int) -> None:
    target, drafter = random_table("p", 5, lowest=0), random_table("q", 5, lowest=0)
    floats = [lambda tokens, m=m: m.probs(tuple(tokens[-2:])).astype(np.float64) for m in (target, drafter)]
    for seed in range(5):
        want = minimal.keyed_plain(floats[0], [1], 40, seed)
        text, passes = minimal.keyed_speculative(floats[0], floats[1], [1], 40, ahead, seed)
        assert text == want
        assert passes <= 40


def test_draws_follow_their_weights() -> None:
    rng = minimal.Rng(0)
    drawn = np.bincount([rng.sample(np.array([0.0, 2.0, 6.0])) for _ in range(4000)], minlength=3)
    assert drawn[0] == 0
    assert abs(drawn[2] - 3000) < 5 * np.sqrt(4000 * 0.75 * 0.25)
    assert sum(rng.accept(0.25) for _ in range(4000)) == pytest.approx(1000, abs=5 * np.sqrt(4000 * 0.75 * 0.25))


def test_demo(capsys: pytest.CaptureFixture[str]) -> None:
    minimal._demo()
    assert "same text as plain: True" in capsys.readouterr().out
