"""KV on its own: slots, transactions and the placement of a tree's rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from forerun.backends.kv import BLOCK, SequenceKV, place
from forerun.core.draft import ROOT, Draft
from forerun.errors import BackendError
from tests.unit.backends.tiny import Floats

TREE = Draft((7, 8, 9, 10), (ROOT, ROOT, 0, 1))


def rows(values: Sequence[float]) -> Floats:
    """`[rows, kv_heads 2, head_dim 4]`, the row's value everywhere."""
    return np.tile(np.asarray(values, np.float32)[:, None, None], (1, 2, 4))


def filled(values: Sequence[float]) -> SequenceKV:
    kv = SequenceKV(None, 3, 2, 4)
    write(kv, values)
    kv.keep(())
    return kv


def write(kv: SequenceKV, input_tokens: Sequence[float], nodes: Sequence[float] = ()) -> None:
    kv.begin(len(input_tokens), len(nodes))
    for layer in range(3):
        kv.write(layer, rows([*input_tokens, *nodes]), -rows([*input_tokens, *nodes]))


def held(kv: SequenceKV) -> list[float]:
    """The values of all committed slots, once they agree over layers, heads, and keys and values."""
    for layer in range(3):
        k, v = kv.snapshot(layer)
        assert k.shape == v.shape == (2, kv.length, 4)
        assert np.array_equal(k, -v)
        assert np.array_equal(k, np.tile(kv.snapshot(0)[0][0, :, 0][None, :, None], (2, 1, 4)))
    assert not kv.k[:, :, kv.length :].any()
    assert not kv.v[:, :, kv.length :].any()
    return [float(x) for x in kv.snapshot(0)[0][0, :, 0]]


@pytest.mark.parametrize(("path", "kept"), [((), []), ((0,), [3]), ((1, 3), [4, 6]), ((0, 2), [3, 5]), ((1,), [4])])
def test_keep_moves_a_path_into_place(path: tuple[int, ...], kept: list[float]) -> None:
    kv = filled([1])
    write(kv, [2], [3, 4, 5, 6])
    kv.keep(path)
    assert held(kv) == [1, 2, *kept]


def test_roll_back() -> None:
    kv = filled([1, 2])
    write(kv, [3], [4, 5])
    assert kv.in_pass
    assert kv.length == 2
    kv.roll_back()
    kv.roll_back()
    assert not kv.in_pass
    assert held(kv) == [1, 2]


def test_growing_keeps_what_is_there() -> None:
    kv = filled([])
    expected: list[float] = []
    for value in range(3 * BLOCK):
        write(kv, [value], [9, 9, 9])
        kv.keep(())
        expected.append(value)
    assert held(kv) == expected
    assert kv.k.shape[2] % BLOCK == 0
    assert kv.nbytes == 2 * kv.k.nbytes


def test_truncate_and_fork() -> None:
    kv = filled([1, 2, 3])
    copy = kv.fork()
    kv.truncate(1)
    assert (held(kv), held(copy)) == ([1], [1, 2, 3])
    write(kv, [5], [6])
    assert held(kv.fork()) == [1]
    with pytest.raises(ValueError, match="middle of a pass"):
        kv.truncate(0)
    kv.keep((0,))
    assert held(kv) == [1, 5, 6]


def test_close() -> None:
    kv = filled([1])
    write(kv, [2], [])
    kv.close()
    kv.close()
    kv.roll_back()
    assert (kv.length, kv.nbytes, kv.in_pass) == (0, 0, False)
    with pytest.raises(BackendError, match="closed"):
        kv.fork()


def test_a_chain_stands_where_its_positions_are() -> None:
    placement = place(5, 2, Draft.chain((1, 2, 3)))
    assert list(placement.positions) == [5, 6, 7, 8, 9]
    assert placement.straight == 5
    assert placement.tail.size == 0


@pytest.mark.parametrize("start", [0, 1, BLOCK - 4, BLOCK - 3, BLOCK - 2, BLOCK - 1, BLOCK, 5 * BLOCK - 2])
def test_nodes_read_their_own_path_in_the_order_of_positions(start: int) -> None:
    placement = place(start, 2, TREE)
    root = start + 1
    assert list(placement.positions) == [start, root, root + 1, root + 1, root + 2, root + 2]
    assert placement.straight == 2
    assert placement.tail_start % BLOCK == 0
    assert placement.tail_start <= root + 1 < placement.tail_start + BLOCK
    for node in range(4):
        slots = list(range(start + 2)) + [start + 2 + n for n in TREE.path_to(node)]
        seen = len(slots) - placement.tail_start
        assert list(placement.tail[node, :seen]) == slots[placement.tail_start :]
        assert not placement.tail[node, seen:].any()
