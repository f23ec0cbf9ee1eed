"""Keyed noise: every random number is a pure function of (seed, domain, salt, position, token id).

The generator is splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): output
`i` of the stream with state `s` is `mix(s + (i + 1) * GOLDEN)`, so any output can be had without the ones before it. Only
64-bit integer arithmetic and IEEE additions, multiplications and divisions are used, never a library's random generator
or logarithm, so a seed gives the same text on every machine and with every version of numpy.

A draw is Gumbel-max: argmax over v of scores[v] + G[v] is distributed as softmax(scores). Two models that draw with the
same G agree nearly as often as the best coupling of their distributions allows (2408.07978).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1
# Scores within this distance of the best are looked at first. Any value gives the same draw; this one is fast.
_NEAR = 8.0
_BORDER = 2.0**-6


class Domain(IntEnum):
    """What a number is for. Numbers of different domains are independent."""

    TOKEN = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3


def splitmix64(state: int, index: int) -> int:
    """Output `index` (from 0) of the splitmix64 stream that starts at `state`."""
    z = (state + (index + 1) * _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * _MIX1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX2) & _MASK
    return z ^ (z >> 31)


def splitmix64_array(state: int, indices: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The same for an array of indices."""
    z = indices + np.uint64(1)
    z *= np.uint64(_GOLDEN)
    z += np.uint64(state)
    z ^= z >> np.uint64(30)
    z *= np.uint64(_MIX1)
    z ^= z >> np.uint64(27)
    z *= np.uint64(_MIX2)
    z ^= z >> np.uint64(31)
    return z


def derive(seed: int, *parts: int) -> int:
    """A stream's state from a seed and what the stream is for."""
    state = splitmix64(seed & _MASK, 0)
    for part in parts:
        state = splitmix64(state ^ (part & _MASK), 0)
    return state


def natural_log(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """ln(x) for finite x > 0 to within two units in the last place, from IEEE operations in one fixed order.

    x = m 2^e with m in [sqrt(1/2), sqrt(2)); ln m = 2 artanh((m - 1) / (m + 1)), by its series.
    """
    m, e = np.frexp(x)
    low = m < math.sqrt(0.5)
    m = np.where(low, m * 2.0, m)
    exponent = np.where(low, e - 1, e).astype(np.float64)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    series = np.full_like(z, 1.0 / 23.0)
    for k in range(21, 2, -2):
        series = series * z + 1.0 / k
    # ln 2 in two parts, so that exponent * high is exact (fdlibm's split).
    high, rest = 6.93147180369123816490e-01, 1.90821492927058770002e-10
    return exponent * high + (2.0 * s + (exponent * rest + 2.0 * s * z * series))


class Noise:
    """All the randomness of one request, from its seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def stream(self, domain: Domain, salt: int = 0) -> Stream:
        """The numbers of one domain; `salt` gives a fresh, independent set (the ratio rules take one per step)."""
        return Stream(derive(self.seed, int(domain), salt))

    def uniform(self, domain: Domain, salt: int, index: int) -> float:
        """A number in (0, 1) with 52 random bits."""
        word = splitmix64(derive(self.seed, int(domain), salt), index)
        return ((word >> 12) + 0.5) / 2.0**52


class Stream:
    """Gumbel noise G[position, token id], and the draw made with it.

    Each number has 52 bits: 32 coarse ones, made for the whole vocabulary at once (one hash serves two ids), and 20 fine
    ones, made only for the ids that the coarse ones leave in the race.
    """

    _KEPT = 16

    def __init__(self, key: int) -> None:
        self._key = key
        self._made: OrderedDict[tuple[int, int], NDArray[np.uint32]] = OrderedDict()

    def coarse(self, position: int, vocab: int) -> NDArray[np.uint32]:
        """`[vocab]` high words of the noise at a position; the last few are remembered for drafter and target to share."""
        found = self._made.get((position, vocab))
        if found is not None:
            self._made.move_to_end((position, vocab))
            return found
        pairs = np.arange((vocab + 1) // 2, dtype=np.uint64)
        words = splitmix64_array(derive(self._key, position, 0), pairs).astype("<u8", copy=False)
        made = words.view("<u4")[:vocab].astype(np.uint32, copy=False)
        self._made[position, vocab] = made
        if len(self._made) > self._KEPT:
            self._made.popitem(last=False)
        return made

    def gumbel(self, position: int, ids: NDArray[np.int64], coarse: NDArray[np.uint32]) -> NDArray[np.float64]:
        """G at a position for the given token ids; `coarse` are their high words."""
        fine = splitmix64_array(derive(self._key, position, 1), ids.astype(np.uint64)) >> np.uint64(44)
        uniform = (coarse.astype(np.float64) * 2.0**20 + fine.astype(np.float64) + 0.5) / 2.0**52
        return -natural_log(-natural_log(uniform))

    def race(self, scores: NDArray[Any], position: int) -> int:
        """argmax of scores + G over a `[vocab]` of log-weights (-inf: impossible; at least one must be finite)."""
        return int(self.order(scores, position, 1)[0])

    def order(self, scores: NDArray[Any], position: int, count: int) -> NDArray[np.int64]:
        """The first `count` ids of the race, best first: a draw without replacement (Plackett-Luce); fewer if need be.

        Only ids that can still win are looked at closely: with a lower bound L on the last winner, an id whose score is s
        needs G >= L - s, a threshold on its coarse word. The result is that of the full computation. All scores are taken
        relative to the best, in doubles: beside a score of millions the noise would be rounded away.
        """
        best = np.max(scores)
        coarse = self.coarse(position, len(scores))
        near = np.flatnonzero(scores > float(best) - _NEAR)
        if len(near) < count:
            ids = np.flatnonzero(scores > -np.inf)
        else:
            words = coarse if len(near) == len(coarse) else coarse[near]
            likely = near[_large(words, count)]
            sums = self._sums(scores, best, likely, coarse, position)
            bound = float(np.partition(sums, len(sums) - count)[len(sums) - count])
            near = near[words >= _coarse_threshold(bound)]
            # The border between near and far is rounded to the scores' precision; the slack covers that.
            far = np.flatnonzero(coarse >= _coarse_threshold(bound + _NEAR - _BORDER))
            ids = np.union1d(near, far[scores[far] > -np.inf])
        sums = self._sums(scores, best, ids, coarse, position)
        return ids[np.argsort(-sums, kind="stable")[:count]]

    def _sums(
        self, scores: NDArray[Any], best: Any, ids: NDArray[np.int64], coarse: NDArray[np.uint32], position: int
    ) -> NDArray[np.float64]:
        return (scores[ids].astype(np.float64) - float(best)) + self.gumbel(position, ids, coarse[ids])


def _large(words: NDArray[np.uint32], count: int) -> NDArray[np.int64]:
    """Where at least `count` large words are: the largest one, or about those that so many words have above a level."""
    if count == 1:
        return np.array([np.argmax(words)])
    share = (4 * count + 16) / len(words)
    found = np.flatnonzero(words >= int(2.0**32 * (1.0 - share))) if share < 1.0 else np.arange(len(words))
    return found if len(found) >= count else np.argpartition(words, len(words) - count)[len(words) - count :]


def _coarse_threshold(needed: float) -> int:
    """The least coarse word whose G can reach `needed`."""
    if needed < -6.0:  # exp(-exp(6)) is below 2^-32 by far: every word may
        return 0
    # Two units of slack cover the rounding of the two exponentials.
    return max(0, int(math.exp(-math.exp(-needed)) * 2.0**32) - 2)
