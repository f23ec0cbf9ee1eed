"""The randomness of a step: repeatable, fresh in each step, and with the probabilities asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest

from forerun.core.noise import Domain, Noise
from forerun.core.rng import StepRng


def step_rng(root: int = 1, seed: int = 0) -> StepRng:
    return StepRng(Noise(seed), root)


def test_a_test_succeeds_with_its_probability() -> None:
    count = 4000
    for probability in (0.01, 0.3, 0.9):
        rng = step_rng()
        successes = sum(rng.accept(probability) for _ in range(count))
        assert abs(successes - count * probability) < 5 * math.sqrt(count * probability * (1 - probability))


def test_a_test_at_the_ends() -> None:
    rng = step_rng()
    assert not any(rng.accept(0.0) for _ in range(1000))
    assert all(rng.accept(1.0) for _ in range(1000))
    assert all(rng.accept(np.float64(1.5)) for _ in range(10))


def test_a_sample_is_proportional_to_the_weights() -> None:
    weights = np.array([0.0, 3.0, 0.0, 1.0, 4.0, 0.0])
    rng = step_rng()
    count = 4000
    seen = np.bincount([rng.sample(weights) for _ in range(count)], minlength=6)
    want = count * weights / weights.sum()
    assert seen[weights == 0].sum() == 0
    assert ((seen - want)[weights > 0] ** 2 / want[weights > 0]).sum() < 27.7  # 2 degrees of freedom, p = 1e-6


@pytest.mark.parametrize("uniform", [0.5 / 2**52, 0.5, 1 - 2.0**-53])
@pytest.mark.parametrize(
    "weights", [[0, 1, 0], [0, 0, 1e-300, 0], [0, 0.1, 0.2, 0.7, 0], [1 / 3, 0, 1 / 3, 0, 1 / 3, 0]]
)
def test_a_sample_never_has_a_weight_of_zero(weights: list[float], uniform: float) -> None:
    class Fixed(Noise):
        def uniform(self, domain: Domain, salt: int, index: int) -> float:
            return uniform

    assert weights[StepRng(Fixed(0), 1).sample(np.array(weights))] > 0


def results_of(rng: StepRng) -> list[bool]:
    return [rng.accept(0.5) for _ in range(64)]


def test_it_repeats_per_seed_and_root_and_differs_otherwise() -> None:
    assert results_of(step_rng(3, 5)) == results_of(step_rng(3, 5))
    others = [results_of(step_rng(3, 5)), results_of(step_rng(4, 5)), results_of(step_rng(3, 6))]
    assert len({tuple(each) for each in others}) == 3


def test_samples_do_not_use_up_tests() -> None:
    rng = step_rng()
    mixed = []
    for _ in range(64):
        mixed.append(rng.accept(0.5))
        rng.sample(np.ones(3))
    assert mixed == results_of(step_rng())
