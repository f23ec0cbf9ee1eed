"""Matrix products in fixed blocks: right, and the same bits in every place, for any number of rows and threads."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.backends.reference.linear import IN_TILE, LANES, OUT_TILE, Linear
from forerun.backends.reference.workers import Workers
from tests.unit.backends.tiny import Floats

# Whole and broken tiles, one output, and more inputs than one piece holds.
SHAPES = [
    (1, 8),
    (5, 24),
    (OUT_TILE, 64),
    (OUT_TILE + 1, 100),
    (3 * OUT_TILE, 576),
    (70, IN_TILE),
    (40, 2 * IN_TILE + 37),
]


def random(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("lanes", [None, 1])
def test_equals_the_product(shape: tuple[int, int], lanes: int | None) -> None:
    weight, bias, x = random(*shape), random(shape[0], seed=1), random(37, shape[1], seed=2)
    exact = x.astype(np.float64) @ weight.astype(np.float64).T + bias
    found = Linear(weight, bias, workers=Workers(1), lanes=lanes)(x)
    assert np.abs(found - exact).max() < 1e-5 * np.sqrt(shape[1])
    assert np.array_equal(Linear(weight, workers=Workers(1))(x) + bias, Linear(weight, bias, workers=Workers(1))(x))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("lanes", [None, 1])
def test_a_row_has_the_same_bits_in_every_place(shape: tuple[int, int], lanes: int | None) -> None:
    linear = Linear(random(*shape), workers=Workers(1), lanes=lanes)
    row = random(1, shape[1], seed=3)
    alone = linear(row)
    for rows in (1, 2, 3, 7, LANES - 1, LANES, LANES + 1, 3 * LANES + 5):
        company = random(rows, shape[1], seed=rows)
        for place in range(rows):
            x = company.copy()
            x[place] = row
            assert np.array_equal(linear(x)[place], alone[0]), (rows, place)


def test_threads_change_nothing() -> None:
    weight, x = random(40 * OUT_TILE + 3, 700), random(50, 700, seed=1)
    one = Linear(weight, workers=Workers(1))(x)
    for threads in (2, 3, 5):
        workers = Workers(threads)
        assert np.array_equal(Linear(weight, workers=workers)(x), one)
        workers.close()
        assert np.array_equal(Linear(weight, workers=workers)(x), one)


def test_rows_share_products_where_lanes_agree() -> None:
    assert Linear(random(OUT_TILE, 64), workers=Workers(1)).lanes in (1, LANES)


def test_lanes_that_disagree_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A BLAS whose last lane is computed another way costs speed, not bits."""

    def crooked(a: Floats, b: Floats) -> Floats:
        product: Floats = a @ b
        product[..., -1] = np.nextafter(product[..., -1], np.float32(np.inf))
        return product

    monkeypatch.setattr("forerun.backends.reference.linear.np.matmul", crooked)
    linear = Linear(random(OUT_TILE + 1, 64), workers=Workers(1))
    assert linear.lanes == 1
    row = random(1, 64, seed=1)
    assert np.array_equal(linear(np.repeat(row, 40, axis=0)), np.repeat(linear(row), 40, axis=0))


def test_no_rows() -> None:
    assert Linear(random(40, 8), workers=Workers(2))(random(0, 8)).shape == (0, 40)
