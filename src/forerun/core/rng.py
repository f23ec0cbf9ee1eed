"""The randomness that verifiers use in production: keyed like everything else, and fresh each step."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.core.noise import Domain, Noise


class StepRng:
    """Tests and samples of one step of one request (see protocols.Rng).

    They are a pure function of the request's seed, the root's position (no two steps of a request share one) and how
    many were asked for before, so that they can be had again; their domains are apart from those of tokens and drafting.
    """

    def __init__(self, noise: Noise, root_position: int) -> None:
        self._noise = noise
        self._salt = root_position
        self._tests = 0
        self._samples = 0

    def accept(self, probability: Any) -> bool:
        """True with the given probability; never at 0, always from 1 on."""
        uniform = self._noise.uniform(Domain.ACCEPT, self._salt, self._tests)
        self._tests += 1
        return bool(uniform < probability)

    def sample(self, weights: NDArray[Any]) -> int:
        """An index by inversion of the cumulative sum; never one of weight 0. At least one weight must be positive."""
        cumulative = np.cumsum(weights, dtype=np.float64)
        uniform = self._noise.uniform(Domain.RESIDUAL, self._salt, self._samples)
        self._samples += 1
        index = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
        # The product may round up to the whole mass: the last index with a weight is meant.
        return index if index < len(cumulative) else int(np.flatnonzero(weights)[-1])
