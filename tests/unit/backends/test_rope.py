"""Rotary embedding: rotations by hand, and each rule of stretching at its ends."""

from __future__ import annotations

import math

import numpy as np
import pytest

from forerun.backends.reference.rope import Rope, attention_factor, frequencies, rotate
from forerun.weights.spec import RopeScaling


def test_plain_frequencies() -> None:
    assert frequencies(10_000.0, 4) == pytest.approx([1.0, 0.01])


def test_linear() -> None:
    assert frequencies(10_000.0, 4, RopeScaling("linear", factor=8.0)) == pytest.approx([0.125, 0.00125])


def test_factors_of_a_file() -> None:
    scaling = RopeScaling("factors", frequency_factors=(1.0, 32.0))
    assert frequencies(10_000.0, 4, scaling) == pytest.approx([1.0, 0.01 / 32])


def test_llama3_keeps_short_waves_and_stretches_long_ones() -> None:
    scaling = RopeScaling("llama3", factor=8.0, original_context=8192, low_freq_factor=1.0, high_freq_factor=4.0)
    plain, found = frequencies(500_000.0, 128), frequencies(500_000.0, 128, scaling)
    waves = 2 * math.pi / plain
    assert np.array_equal(found[waves < 8192 / 4], plain[waves < 8192 / 4])
    assert found[waves > 8192] == pytest.approx(plain[waves > 8192] / 8)
    between = (waves > 8192 / 4) & (waves < 8192)
    smooth = (8192 / waves[between] - 1) / 3
    assert between.any()
    assert found[between] == pytest.approx((1 - smooth) * plain[between] / 8 + smooth * plain[between])


def test_yarn_keeps_fast_pairs_and_stretches_slow_ones() -> None:
    scaling = RopeScaling("yarn", factor=4.0, original_context=2048)
    plain, found = frequencies(10_000.0, 64), frequencies(10_000.0, 64, scaling)
    turns = 2048 * plain / (2 * math.pi)
    assert found[turns > 40] == pytest.approx(plain[turns > 40])
    assert found[turns < 0.7] == pytest.approx(plain[turns < 0.7] / 4)
    assert np.all((found <= plain * 1.000001) & (found >= plain / 4.000001))


def test_yarn_without_truncation_ramps_between_broken_pairs() -> None:
    whole = frequencies(10_000.0, 64, RopeScaling("yarn", factor=4.0, original_context=2048))
    broken = frequencies(10_000.0, 64, RopeScaling("yarn", factor=4.0, original_context=2048, truncate=False))
    assert not np.array_equal(whole, broken)


def test_attention_factor() -> None:
    usual = 0.1 * math.log(4) + 1
    assert attention_factor(None) == attention_factor(RopeScaling("linear", factor=4.0)) == 1.0
    assert attention_factor(RopeScaling("yarn", factor=4.0)) == pytest.approx(usual)
    assert attention_factor(RopeScaling("yarn", factor=0.5)) == 1.0
    assert attention_factor(RopeScaling("yarn", factor=4.0, attention_factor=1.5)) == 1.5
    both = RopeScaling("yarn", factor=4.0, mscale=1.0, mscale_all_dim=0.5)
    assert attention_factor(both) == pytest.approx(usual / (0.05 * math.log(4) + 1))


def test_rotation_is_of_halves_and_by_position() -> None:
    rope = Rope(10_000.0, 4)
    cos, sin = rope.at(np.array([0, 3]))
    x = np.tile(np.array([1, 2, 3, 4], np.float32), (2, 1, 1))
    turned = rotate(x, cos, sin)
    assert turned[0, 0] == pytest.approx([1, 2, 3, 4])
    a, b = 3.0, 0.03
    expected = [
        math.cos(a) - 3 * math.sin(a),
        2 * math.cos(b) - 4 * math.sin(b),
        3 * math.cos(a) + math.sin(a),
        4 * math.cos(b) + 2 * math.sin(b),
    ]
    assert turned[1, 0] == pytest.approx(expected)


def test_bits_do_not_depend_on_who_asks() -> None:
    positions = np.array([5000, 3, 1023, 1024, 0])
    together = Rope(10_000.0, 8).at(positions)
    for i, position in enumerate(positions):
        alone = Rope(10_000.0, 8).at(np.array([position]))
        assert np.array_equal(together[0][i], alone[0][0])
        assert np.array_equal(together[1][i], alone[1][0])
