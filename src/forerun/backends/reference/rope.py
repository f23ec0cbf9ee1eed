"""Rotary position embedding (2104.09864) and the ways to stretch it past the trained context."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from forerun.core.model import Floats
from forerun.weights.spec import RopeScaling

# Angles are computed for this many positions at once, so that a position's bits never depend on who asks for it.
_PAGE = 1024


def frequencies(base: float, head_dim: int, scaling: RopeScaling | None = None) -> NDArray[np.float64]:
    """`[head_dim / 2]`, radians per position: base ** (-2 i / head_dim), stretched as `scaling` says."""
    plain: NDArray[np.float64] = base ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return plain / scaling.factor
    if scaling.kind == "factors":
        return plain / np.asarray(scaling.frequency_factors, dtype=np.float64)
    if scaling.kind == "llama3":
        return _llama3(plain, scaling)
    return _yarn(plain, base, head_dim, scaling)


def attention_factor(scaling: RopeScaling | None) -> float:
    """What cos and sin are multiplied by: 1 but for YaRN (2309.00071), 0.1 ln(factor) + 1 unless the model says more."""
    if scaling is None or scaling.kind != "yarn":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return _temperature(scaling.factor, scaling.mscale) / _temperature(scaling.factor, scaling.mscale_all_dim)
    return _temperature(scaling.factor, 1.0)


def _temperature(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _llama3(plain: NDArray[np.float64], scaling: RopeScaling) -> NDArray[np.float64]:
    """Llama 3.1's rule: wavelengths that fit often into the original context stay, long ones are stretched, a ramp between."""
    turns = scaling.original_context * plain / (2 * math.pi)
    ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    share = np.clip(ramp, 0.0, 1.0)
    stretched: NDArray[np.float64] = (1 - share) * plain / scaling.factor + share * plain
    return stretched


def _yarn(plain: NDArray[np.float64], base: float, head_dim: int, scaling: RopeScaling) -> NDArray[np.float64]:
    """YaRN: pairs that turn `beta_fast` times over the original context stay, `beta_slow` times stretch, a ramp between."""

    def pair(turns: float) -> float:
        return head_dim * math.log(scaling.original_context / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    # A ramp of no width would divide by zero.
    ramp = (np.arange(head_dim // 2) - low) / ((high - low) or 0.001)
    share = np.clip(ramp, 0.0, 1.0)
    stretched: NDArray[np.float64] = share * plain / scaling.factor + (1 - share) * plain
    return stretched


class Rope:
    """Cosines and sines by absolute position, in fp32 from angles in fp64."""

    def __init__(self, base: float, head_dim: int, scaling: RopeScaling | None = None) -> None:
        # Published models hold their frequencies in fp32; far out the rounding shows.
        self._frequencies = frequencies(base, head_dim, scaling).astype(np.float32).astype(np.float64)
        self._factor = attention_factor(scaling)
        self._cos: Floats = np.empty((0, head_dim // 2), np.float32)
        self._sin: Floats = self._cos

    def at(self, positions: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """cos and sin, `[rows, head_dim / 2]` each."""
        while len(self._cos) <= positions.max(initial=0):
            page = np.arange(len(self._cos), len(self._cos) + _PAGE, dtype=np.float64)
            angles = page[:, None] * self._frequencies
            self._cos = np.concatenate([self._cos, (np.cos(angles) * self._factor).astype(np.float32)])
            self._sin = np.concatenate([self._sin, (np.sin(angles) * self._factor).astype(np.float32)])
        return self._cos[positions], self._sin[positions]


def rotate(x: Floats, cos: Floats, sin: Floats) -> Floats:
    """Rotate `[rows, heads, head_dim]`: dimension d pairs with d + head_dim / 2."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    cos, sin = cos[:, None], sin[:, None]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
