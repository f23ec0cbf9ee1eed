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
from tests.exact.enumeration import Table, Text, TextLaw, every_path, plain_law, random_table, round_law

P, Q = random_table("p", 2), random_table("q", 2)


def model(table: Table) -> minimal.Model:
    return lambda tokens: table.law(tuple(tokens))


def law_of(run: Callable[[Any], Sequence[int]]) -> TextLaw:
    law: TextLaw = defaultdict(Fraction)
    for tokens, probability in every_path(lambda rng: tuple(run(rng))):
        law[tokens] += probability
    return dict(law)


def test_plain_has_the_law() -> None:
    assert law_of(lambda dice: minimal.plain(model(P), [], 3, dice)) == plain_law(P, 3)


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_speculative_has_the_law_of_plain(ahead: int) -> None:
    def run(dice: Any) -> Text:
        return tuple(minimal.speculative(model(P), model(Q), [], 3, ahead, dice)[0][:3])

    assert law_of(run) == plain_law(P, 3)


@pytest.mark.parametrize("vocab", [2, 3])
def test_oracle_for_the_rejection_rule(vocab: int) -> None:
    p, q = random_table("p", vocab, lowest=0, highest=2), random_table("q", vocab)

    def one_round(dice: Rng) -> list[int]:
        told = minimal.draft(model(q), [], 2, dice)  # type: ignore[arg-type]
        return minimal.verify(model(p), [], told, dice)  # type: ignore[arg-type]

    assert law_of(one_round) == round_law(Rejection(), p, chain(q, 2), ())


@pytest.mark.parametrize("ahead", [0, 1, 4])
def test_keyed_text_is_the_plain_text(ahead: int) -> None:
    target, drafter = random_table("p", 5, lowest=0), random_table("q", 5, lowest=0)
    floats = [lambda tokens, m=m: m.law(tuple(tokens[-2:])).astype(np.float64) for m in (target, drafter)]
    for seed in range(5):
        want = minimal.keyed_plain(floats[0], [1], 40, seed)
        text, passes = minimal.keyed_speculative(floats[0], floats[1], [1], 40, ahead, seed)
        assert text == want
        assert passes <= 40


def test_dice_follow_their_weights() -> None:
    dice = minimal.Dice(0)
    drawn = np.bincount([dice.sample(np.array([0.0, 2.0, 6.0])) for _ in range(4000)], minlength=3)
    assert drawn[0] == 0
    assert abs(drawn[2] - 3000) < 5 * np.sqrt(4000 * 0.75 * 0.25)
    assert sum(dice.accept(0.25) for _ in range(4000)) == pytest.approx(1000, abs=5 * np.sqrt(4000 * 0.75 * 0.25))


def test_demo(capsys: pytest.CaptureFixture[str]) -> None:
    minimal._demo()
    assert "same text as plain: True" in capsys.readouterr().out
