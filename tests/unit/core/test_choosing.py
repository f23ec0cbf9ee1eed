"""Each sampling parameter alone and together, and `choose` against the distribution that it claims to draw from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from forerun.core.choosing import choose, logprobs, probs, scores, softmax, top1_probability, untruncated_probs
from forerun.core.noise import Domain, Noise
from forerun.core.sampling import Sampling
from forerun.core.truncation import largest
from forerun.errors import BackendError

BANNED = -math.inf


@dataclass(frozen=True)
class Text:
    """A prefix by hand: ids of the prompt, ids of the output, ids that may follow (None: all)."""

    prompt: tuple[int, ...] = (0,)
    output: tuple[int, ...] = ()
    only: tuple[bool, ...] | None = None

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.output)

    def seen(self) -> NDArray[np.int64]:
        return np.array(sorted({*self.prompt, *self.output}), dtype=np.int64)

    def output_counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        ids, counts = np.unique(np.array(self.output, dtype=np.int64), return_counts=True)
        return ids, counts

    def allowed(self) -> NDArray[np.bool_] | None:
        return None if self.only is None else np.array(self.only)


def row(*logits: float) -> NDArray[np.float32]:
    return np.array(logits, dtype=np.float32)


def logs(*probabilities: float) -> NDArray[np.float32]:
    logits: NDArray[np.float32] = np.log(np.array(probabilities)).astype(np.float32)
    return logits


def kept(logits: NDArray[np.float32], prefix: Text = Text(), usable: int | None = None, **sampling: Any) -> list[float]:
    given = logits.copy()
    got = scores(logits, prefix, Sampling(**{"temperature": 1.0, **sampling}), usable or len(logits))
    assert np.array_equal(given, logits), "the row must not be changed"
    return [float(x) for x in got]


def ids(logits: NDArray[np.float32], **sampling: Any) -> list[int]:
    return [i for i, x in enumerate(kept(logits, **sampling)) if x > BANNED]


def test_nothing_asked_for_nothing_changed() -> None:
    assert kept(row(1, 2, 3)) == [1, 2, 3]


def test_temperature_divides() -> None:
    assert kept(row(1, -2, 3), temperature=0.5) == [2, -4, 6]
    assert probs(row(0, math.log(4)), Text(), Sampling(temperature=2.0), 2) == pytest.approx([1 / 3, 2 / 3])


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1e-300])
def test_temperature_0_is_greedy_and_so_is_what_would_overflow(temperature: float) -> None:
    sampling = Sampling(temperature=temperature, top_k=1, top_p=0.1, min_p=0.9)
    stream = Noise(0).stream(Domain.TOKEN)
    assert choose(row(1, 300, 299.9), Text(), sampling, 3, stream) == 1
    assert choose(row(5, 5, 5), Text(), sampling, 3, stream) == 0
    assert probs(row(1, 300, 299.9), Text(), sampling, 3).tolist() == [0, 1, 0]


def test_low_temperatures_do_not_overflow() -> None:
    assert probs(row(1000, -1000, 999), Text(), Sampling(temperature=2e-5), 3).tolist() == [1, 0, 0]


@pytest.mark.parametrize("size", [3, 500, 20_011])
@pytest.mark.parametrize("count", [1, 8, 200])
@pytest.mark.parametrize("steps", [0, 2])
def test_largest_is_the_head_of_the_sorted_row(size: int, count: int, steps: int) -> None:
    row = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    row = np.round(row * steps) if steps else row  # many equal scores
    ranked = np.argsort(-row, kind="stable")[:count]
    assert sorted(largest(row, count)) == sorted(ranked)
    assert sorted(largest(row, count, 0.75)) == sorted(i for i in ranked if row[i] >= row.max() - np.float32(0.75))


@pytest.mark.parametrize("allowed", [0, 3, 50])
def test_largest_of_a_row_that_is_mostly_banned(allowed: int) -> None:
    row = np.full(20_011, -np.inf, dtype=np.float32)
    ids = np.random.default_rng(allowed).permutation(len(row))[:allowed]
    row[ids] = np.arange(allowed)
    found = largest(row, 8)
    assert sorted(i for i in found if row[i] > -np.inf) == sorted(ids[-8:])


def test_top_k_keeps_the_largest() -> None:
    assert ids(row(1, 5, 3, 4), top_k=2) == [1, 3]
    assert ids(row(1, 5, 3, 4), top_k=4) == [0, 1, 2, 3]
    assert ids(row(1, 5, 3, 4), top_k=400) == [0, 1, 2, 3]


def test_top_k_ties_fall_to_lower_ids() -> None:
    assert ids(row(2, 1, 2, 2, 3), top_k=3) == [0, 2, 4]
    assert ids(row(1, 1, 1, 1), top_k=1) == [0]


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass() -> None:
    probabilities = logs(0.5, 0.25, 0.125, 0.125)
    assert ids(probabilities, top_p=0.4) == [0]
    assert ids(probabilities, top_p=0.51) == [0, 1]
    assert ids(probabilities, top_p=0.8) == [0, 1, 2]
    assert ids(probabilities, top_p=0.9) == [0, 1, 2, 3]
    assert ids(probabilities, top_p=1e-9) == [0]


def test_top_p_reached_exactly_is_enough() -> None:
    """Logits whose weights are powers of two are summed exactly."""
    assert ids(row(0, 0, BANNED, BANNED), top_p=0.5) == [0]
    assert ids(row(0, 0, 0, 0), top_p=0.75) == [0, 1, 2]
    assert ids(row(0, 0, 0, 0), top_p=0.7501) == [0, 1, 2, 3]


def test_top_p_over_a_large_flat_vocabulary() -> None:
    """More ids than are looked at first."""
    assert ids(np.zeros(5000, dtype=np.float32), top_p=0.5) == list(range(2500))
    flat = np.zeros(5000, dtype=np.float32)
    flat[4000] = 1
    assert 4000 in ids(flat, top_p=0.3)


@pytest.mark.parametrize("seed", range(5))
def test_top_p_is_the_textbook_definition(seed: int) -> None:
    logits = np.random.default_rng(seed).normal(0, 3, 2000).astype(np.float32)
    p = softmax(logits)
    order = np.argsort(-p, kind="stable")
    for top_p in (0.1, 0.5, 0.9, 0.99, 0.9999):
        count = int(np.searchsorted(np.cumsum(p[order]), top_p)) + 1
        assert ids(logits, top_p=top_p) == sorted(order[:count].tolist())


def test_min_p_keeps_what_is_near_the_best() -> None:
    probabilities = logs(0.5, 0.3, 0.15, 0.05)
    assert ids(probabilities, min_p=0.5) == [0, 1]
    assert ids(probabilities, min_p=0.2) == [0, 1, 2]
    assert ids(probabilities, min_p=1.0) == [0]
    assert ids(row(2, 2, 1), min_p=1.0) == [0, 1]


def test_min_p_looks_at_probabilities_after_temperature() -> None:
    probabilities = logs(0.6, 0.3, 0.1)
    assert ids(probabilities, min_p=0.3, temperature=1.0) == [0, 1]
    assert ids(probabilities, min_p=0.3, temperature=2.0) == [0, 1, 2]


def test_cuts_follow_each_other() -> None:
    """min-p, then top-k, then top-p over what these leave."""
    probabilities = logs(0.4, 0.3, 0.2, 0.1)
    assert ids(probabilities, top_k=2, top_p=0.6) == [0, 1]
    assert ids(probabilities, top_k=2, top_p=0.57) == [0]
    assert ids(probabilities, min_p=0.4, top_k=3) == [0, 1, 2]
    assert ids(probabilities, min_p=0.6, top_k=3) == [0, 1]


def test_repetition_penalty_on_prompt_and_output() -> None:
    prefix = Text((0, 1), (2, 2))
    assert kept(row(2, -2, 4, 2), prefix, repetition_penalty=2.0) == [1, -4, 2, 2]


def test_presence_and_frequency_on_output_only() -> None:
    prefix = Text((0,), (1, 2, 2))
    assert kept(row(1, 1, 1, 1), prefix, presence_penalty=0.5) == [1, 0.5, 0.5, 1]
    assert kept(row(1, 1, 1, 1), prefix, frequency_penalty=0.25) == [1, 0.75, 0.5, 1]
    assert kept(row(1, 1, 1, 1), prefix, presence_penalty=-0.5, frequency_penalty=-0.25) == [1, 1.75, 2, 1]
    assert kept(row(1, 1), Text((0,)), presence_penalty=0.5) == [1, 1]


def test_penalties_also_at_temperature_0() -> None:
    sampling = Sampling(repetition_penalty=3.0)
    assert choose(row(2, 1), Text((0,)), sampling, 2, Noise(0).stream(Domain.TOKEN)) == 1


def test_bias_adds_and_bans() -> None:
    assert kept(row(1, 2, 3), logit_bias={0: 1.5, 2: BANNED}) == [2.5, 2, BANNED]
    assert kept(row(1, 2, 3), logit_bias={17: 5.0}) == [1, 2, 3]


def test_bias_comes_before_temperature() -> None:
    assert kept(row(1, 2), logit_bias={0: 1.0}, temperature=0.5) == [4, 4]


def test_what_may_not_follow_is_impossible() -> None:
    """Also past the end of what is said of the ids, at every temperature, and whatever a bias says."""
    prefix = Text(only=(True, False, True))
    assert kept(row(1, 9, 2, 8), prefix) == [1, BANNED, 2, BANNED]
    assert kept(row(1, 9, 2, 8), prefix, logit_bias={1: 50.0}, top_k=2) == [1, BANNED, 2, BANNED]
    stream = Noise(0).stream(Domain.TOKEN)
    assert choose(row(1, 9, 2, 8), prefix, Sampling(), 4, stream) == 2
    assert probs(row(1, 9, 2, 8), prefix, Sampling(), 4).tolist() == [0, 0, 1, 0]
    for temperature in (1.0, 3.0):
        p = probs(row(0, 9, 0, 8), prefix, Sampling(temperature=temperature), 4)
        assert p.tolist() == [0.5, 0, 0.5, 0]
        assert choose(row(1, 9, 2, 8), prefix, Sampling(temperature=temperature), 4, stream) in (0, 2)
    assert untruncated_probs(row(0, 9, 0, 8), prefix, Sampling(), 4).tolist() == [0.5, 0, 0.5, 0]
    with pytest.raises(BackendError, match="every token is banned"):
        choose(row(1, 2), Text(only=(False, False)), Sampling(), 2, stream)


def test_padding_is_never_sampled() -> None:
    assert kept(row(1, 2, 90, 99), usable=2) == [1, 2, BANNED, BANNED]
    assert kept(row(1, 2, 90, 99), usable=2, logit_bias={3: 100.0}) == [1, 2, BANNED, BANNED]
    sampling = Sampling(temperature=5.0)
    stream = Noise(0).stream(Domain.TOKEN)
    prefixes = [Text((0,) * n) for n in range(1, 200)]
    assert {choose(row(1, 2, 90, 99), p, sampling, 2, stream) for p in prefixes} == {0, 1}
    assert choose(row(1, 2, 90, 99), Text(), Sampling(), 2, stream) == 1
    assert probs(row(0, 0, 0, 0), Text(), Sampling(), 2)[2:].sum() == 0
    assert untruncated_probs(row(0, 0, 0, 0), Text(), Sampling(), 2).tolist() == [0.5, 0.5, 0, 0]


EVERYTHING = {
    "temperature": 0.8,
    "top_k": 20,
    "top_p": 0.9,
    "min_p": 0.01,
    "repetition_penalty": 1.2,
    "presence_penalty": 0.3,
    "frequency_penalty": 0.1,
    "logit_bias": {3: 2.0, 4: BANNED},
}


def test_choose_draws_from_the_distribution() -> None:
    """Chi-square over 4,000 positions of one distribution with every parameter set; p below 1e-6 fails."""
    logits = np.random.default_rng(0).normal(0, 1.5, 60).astype(np.float32)
    sampling = Sampling(**EVERYTHING)  # type: ignore[arg-type]
    stream = Noise(9).stream(Domain.TOKEN)
    p = probs(logits, Text((3, 5), (6, 6, 7)), sampling, 55)
    final = scores(logits, Text((3, 5), (6, 6, 7)), sampling, 55)
    count = 4000
    seen = np.bincount([stream.race(final, position) for position in range(count)], minlength=60)
    assert seen[p == 0].sum() == 0
    possible = p > 0
    assert 5 < possible.sum() <= 20
    statistic = ((seen - count * p)[possible] ** 2 / (count * p[possible])).sum()
    assert statistic < 67  # 19 degrees of freedom at most
    chosen = choose(logits, Text((3, 5), (6, 6, 7)), sampling, 55, stream)
    assert chosen == stream.race(final, 5)


def test_probs_are_the_softmax_of_the_scores() -> None:
    logits = np.random.default_rng(1).normal(0, 2, 300).astype(np.float32)
    p = probs(logits, Text((1,), (2, 3)), Sampling(**EVERYTHING), 300)  # type: ignore[arg-type]
    assert p.dtype == np.float64
    assert p.sum() == pytest.approx(1, abs=1e-14)
    final = scores(logits, Text((1,), (2, 3)), Sampling(**EVERYTHING), 300).astype(np.float64)  # type: ignore[arg-type]
    assert p == pytest.approx(np.exp(final) / np.exp(final).sum(), rel=1e-12)


def test_untruncated_probs_are_at_temperature_1_without_cuts() -> None:
    logits = row(0, 1, 2)
    sampling = Sampling(temperature=0.2, top_k=1, logit_bias={0: BANNED})
    assert untruncated_probs(logits, Text(), sampling, 3) == pytest.approx([0, 1 / (1 + math.e), math.e / (1 + math.e)])


CUTS: list[dict[str, Any]] = [
    {},
    {"top_k": 2},
    {"top_p": 0.5},
    {"min_p": 0.5},
    {"top_k": 1, "top_p": 0.5, "min_p": 0.1},
    {"repetition_penalty": 2.0, "presence_penalty": 1.0},
    {"logit_bias": {1: 1.0}},
]


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("sampling", CUTS, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_are_an_error(broken: float, sampling: dict[str, Any], temperature: float) -> None:
    """Also where a cut would have hidden them."""
    stream = Noise(0).stream(Domain.TOKEN)
    asked = Sampling(temperature=temperature, **sampling)
    for at in range(4):
        logits = row(1, 2, 3, 4)
        logits[at] = broken
        with pytest.raises(BackendError, match="not finite"):
            choose(logits, Text((0,), (1,)), asked, 4, stream)
        with pytest.raises(BackendError, match="not finite"):
            probs(logits, Text((0,), (1,)), asked, 4)


def test_all_banned_is_an_error() -> None:
    with pytest.raises(BackendError, match="every token is banned"):
        probs(row(1, 2), Text(), Sampling(temperature=1.0, logit_bias={0: BANNED, 1: BANNED}), 2)


def test_broken_padding_is_no_error() -> None:
    assert probs(row(0, 0, math.nan), Text(), Sampling(temperature=1.0), 2).tolist() == [0.5, 0.5, 0]


def test_logprobs_are_of_the_models_own_distribution() -> None:
    got = logprobs(logs(0.5, 0.3, 0.15, 0.05), 2, 2, 4)
    assert got.token_id == 2
    assert got.logprob == pytest.approx(math.log(0.15), rel=1e-6)
    assert [i for i, _ in got.top] == [0, 1]
    assert [math.exp(x) for _, x in got.top] == pytest.approx([0.5, 0.3], rel=1e-6)


def test_the_top_1_probability_is_at_least_at_temperature_1() -> None:
    assert top1_probability(logs(0.6, 0.3, 0.1), 1.0) == pytest.approx(0.6, rel=1e-6)
    assert top1_probability(logs(0.6, 0.3, 0.1), 0.0) == pytest.approx(0.6, rel=1e-6)
    assert top1_probability(row(0, math.log(4)), 2.0) == pytest.approx(2 / 3, rel=1e-6)
    assert top1_probability(row(1, math.nan), 1.0) == 0.0
    assert top1_probability(row(BANNED, BANNED), 1.0) == 0.0


def test_logprobs_without_alternatives_and_with_all() -> None:
    assert logprobs(row(1, 2), 0, 0, 2).top == ()
    assert [i for i, _ in logprobs(row(1, 3, 3, 9), 0, 10, 3).top] == [1, 2, 0]
