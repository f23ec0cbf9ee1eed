"""Keyed noise: published numbers, the law of its draws, and that shortcuts give the full computation's result."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from forerun.core.noise import Domain, Noise, Stream, derive, natural_log, splitmix64, splitmix64_array

PUBLISHED = {
    0: [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F],
    1234567: [6457827717110365317, 3203168211198807973, 9817491932198370423],
}


@pytest.mark.parametrize("seed", PUBLISHED)
def test_splitmix64_gives_the_published_numbers(seed: int) -> None:
    assert [splitmix64(seed, i) for i in range(3)] == PUBLISHED[seed]
    assert splitmix64_array(seed, np.arange(3, dtype=np.uint64)).tolist() == PUBLISHED[seed]


def test_array_and_scalar_agree_everywhere() -> None:
    indices = np.array([0, 1, 2**20, 2**40, 2**64 - 1], dtype=np.uint64)
    for state in (0, 1, 2**63, 2**64 - 1):
        assert splitmix64_array(state, indices).tolist() == [splitmix64(state, int(i)) for i in indices]


def test_derived_states_differ() -> None:
    states = {
        derive(seed, domain, salt) for seed in (0, 1, -1, 2**64 - 2) for domain in Domain for salt in (0, 1, 2, 1000)
    }
    assert len(states) == 4 * len(Domain) * 4
    assert derive(-1, 0) == derive(2**64 - 1, 0)
    assert derive(0, 1, 2) != derive(0, 2, 1)


def test_natural_log_is_within_two_units_in_the_last_place() -> None:
    random = np.random.default_rng(0)
    x = np.concatenate(
        [
            random.random(20000),
            np.exp(random.uniform(-700, 700, 20000)),
            1 + random.uniform(-1e-3, 1e-3, 20000),
            np.array([2.0**-53, 0.5, math.sqrt(0.5), 1.0, math.sqrt(2), 2.0, 36.7, 5e-324]),
        ]
    )
    want = np.array([math.log(value) for value in x])
    assert np.all(np.abs(natural_log(x) - want) <= 2 * np.spacing(np.abs(want)))


def test_uniform_is_open_and_repeats() -> None:
    noise = Noise(3)
    numbers = [noise.uniform(Domain.ACCEPT, 7, i) for i in range(2000)]
    assert 0 < min(numbers) < 0.005
    assert 0.995 < max(numbers) < 1
    assert numbers == [Noise(3).uniform(Domain.ACCEPT, 7, i) for i in range(2000)]
    others = [
        [Noise(4).uniform(Domain.ACCEPT, 7, i) for i in range(2000)],
        [noise.uniform(Domain.RESIDUAL, 7, i) for i in range(2000)],
        [noise.uniform(Domain.ACCEPT, 8, i) for i in range(2000)],
    ]
    for other in others:
        # The correlation of 2,000 independent pairs has standard deviation 1 / sqrt(2000).
        assert abs(np.corrcoef(numbers, other)[0, 1]) < 5 / math.sqrt(2000)


def full_gumbel(stream: Stream, position: int, vocab: int) -> NDArray[np.float64]:
    ids = np.arange(vocab)
    return stream.gumbel(position, ids, stream.coarse(position, vocab))


def test_noise_by_hand() -> None:
    """The numbers as they are defined, in whole-number arithmetic and with the library's logarithm."""
    stream = Noise(11).stream(Domain.TOKEN)
    key = derive(11, int(Domain.TOKEN), 0)
    got = full_gumbel(stream, 5, 101)
    for token in range(101):
        word = splitmix64(derive(key, 5, 0), token // 2)
        coarse = word & 0xFFFFFFFF if token % 2 == 0 else word >> 32
        fine = splitmix64(derive(key, 5, 1), token) >> 44
        uniform = (coarse * 2**20 + fine + 0.5) / 2**52
        assert got[token] == pytest.approx(-math.log(-math.log(uniform)), rel=1e-14)


def test_noise_of_an_id_does_not_depend_on_the_vocabulary() -> None:
    """A drafter with fewer ids than the target shares its noise."""
    stream = Noise(5).stream(Domain.TOKEN)
    assert np.array_equal(stream.coarse(9, 1001)[:500], stream.coarse(9, 500))


def test_noise_is_gumbel() -> None:
    """Kolmogorov-Smirnov against exp(-exp(-g)) over 200,000 numbers of many positions; p below 1e-6 fails."""
    stream = Noise(1).stream(Domain.TOKEN)
    numbers = np.sort(np.concatenate([full_gumbel(stream, position, 1000) for position in range(200)]))
    n = len(numbers)
    cdf = np.exp(-np.exp(-numbers))
    steps = np.arange(1, n + 1) / n
    distance = max(np.max(steps - cdf), np.max(cdf - steps + 1 / n))
    assert distance < math.sqrt(math.log(2 / 1e-6) / (2 * n))


SCORES: dict[str, NDArray[Any]] = {
    "flat": np.zeros(3001, dtype=np.float32),
    "gentle": np.random.default_rng(1).normal(0, 1, 3001).astype(np.float32),
    "steep": np.random.default_rng(2).normal(0, 8, 3001).astype(np.float32),
    "peaked": np.where(np.arange(3001) == 1234, 50, 0).astype(np.float32),
    "two near, the rest far": np.where(np.arange(3001) % 1500 == 7, 0, -9).astype(np.float32),
    "just at the border": np.where(np.arange(3001) == 3, 0, -8).astype(np.float32),
    "large numbers": (1000.0001 + np.random.default_rng(3).normal(0, 4, 3001)).astype(np.float32),
    "some banned": np.where(np.arange(3001) % 3 == 0, 0, -np.inf).astype(np.float32),
    "few allowed": np.where(np.arange(3001) < 3, 0, -np.inf).astype(np.float32),
    "one allowed": np.where(np.arange(3001) == 3000, -5, -np.inf).astype(np.float32),
    "one id": np.zeros(1, dtype=np.float32),
    "doubles": np.random.default_rng(4).normal(0, 3, 500),
}


@pytest.mark.parametrize("case", SCORES)
def test_race_and_order_are_the_full_computation(case: str) -> None:
    scores = SCORES[case]
    stream = Noise(77).stream(Domain.TOKEN)
    for position in range(100):
        with np.errstate(invalid="ignore"):
            sums = scores.astype(np.float64) + full_gumbel(stream, position, len(scores))
        want = [int(i) for i in np.argsort(-sums, kind="stable") if scores[i] > -np.inf]
        assert stream.race(scores, position) == want[0]
        for count in (1, 2, 4, 8):
            assert stream.order(scores, position, count).tolist() == want[:count]


def test_race_follows_softmax() -> None:
    """Chi-square of 4,000 draws against softmax; 4 degrees of freedom, p below 1e-6 fails."""
    law = np.array([0.4, 0.3, 0.2, 0.08, 0.02])
    stream = Noise(2).stream(Domain.TOKEN)
    scores = np.log(law).astype(np.float32)
    count = 4000
    seen = np.bincount([stream.race(scores, position) for position in range(count)], minlength=5)
    assert ((seen - count * law) ** 2 / (count * law)).sum() < 33.4


def test_order_draws_without_replacement() -> None:
    """Pairs follow p(a) p(b) / (1 - p(a)); 5 degrees of freedom, p below 1e-6 fails."""
    law = np.array([0.5, 0.3, 0.2])
    stream = Noise(3).stream(Domain.TOKEN)
    count = 4000
    seen = np.zeros((3, 3))
    for position in range(count):
        first, second = stream.order(np.log(law), position, 2)
        seen[first, second] += 1
    want = law[:, None] * law[None, :] / (1 - law[:, None]) * (1 - np.eye(3)) * count
    off = ~np.eye(3, dtype=bool)
    assert seen[~off].sum() == 0
    assert ((seen - want)[off] ** 2 / want[off]).sum() < 35.9


def test_sharing_noise_agrees_as_often_as_the_coupling_says() -> None:
    """p=(.5,.3,.2), q=(.2,.5,.3): sum over v of 1 / sum_u max(p_u / p_v, q_u / q_v) = .6935; the best possible is .700."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.3])
    expected = sum(1 / np.maximum(p / p[v], q / q[v]).sum() for v in range(3))
    assert expected == pytest.approx(0.6935, abs=5e-5)
    stream = Noise(0).stream(Domain.TOKEN)
    count = 2500
    agree = sum(stream.race(np.log(p), t) == stream.race(np.log(q), t) for t in range(count))
    assert abs(agree - count * expected) < 5 * math.sqrt(count * expected * (1 - expected))
    apart = Noise(0).stream(Domain.DRAFT, 1)
    match = sum(stream.race(np.log(p), t) == apart.race(np.log(q), t) for t in range(count))
    alone = float((p * q).sum())
    assert alone == pytest.approx(0.31)
    assert abs(match - count * alone) < 5 * math.sqrt(count * alone * (1 - alone))


def test_a_seed_keeps_its_draws() -> None:
    """Frozen: these ids may not change, on any machine or with any numpy, or saved seeds lose their texts."""
    scores = (np.arange(5000) % 97 / 10).astype(np.float32)
    stream = Noise(1234).stream(Domain.TOKEN)
    assert [stream.race(scores, position) for position in range(12)] == FROZEN_RACE
    assert stream.order(scores, 3, 6).tolist() == FROZEN_ORDER
    assert [Noise(-5).uniform(Domain.RESIDUAL, 9, i) for i in range(3)] == FROZEN_UNIFORM


FROZEN_RACE = [1741, 3581, 3102, 771, 1064, 1718, 2519, 1550, 4717, 1432, 3685, 3677]
FROZEN_ORDER = [771, 2211, 1061, 4262, 192, 1835]
FROZEN_UNIFORM = [0.09496963000556125, 0.9237643199684847, 0.8984373340579525]
