"""Attention in fixed blocks of absolute positions, so that a row's bits depend on its own path alone.

Each row and each group of heads is multiplied with one block of BLOCK keys at a time, the blocks' sums are added in the
order of positions, and blocks that a row does not see add exact zeros. Branching rows gather the blocks that hold nodes
along their own path, in the order of positions: in the cache, siblings stand between a node and its ancestors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from forerun.backends.kv import BLOCK, Placement, SequenceKV
from forerun.core.model import Floats

# Rows that are computed together: bounds the memory for scores, and the work on blocks that only later rows see.
_TOGETHER = 64


@dataclass(frozen=True)
class Group:
    """Rows of one sequence that read the same blocks.

    rows: which rows of the pass. positions: `[rows]`. shared_end: positions before it are read from the cache as they
    stand. tail: `[rows, positions]`, the slots of those from `shared_end` on, or None.
    """

    kv: SequenceKV
    rows: slice
    positions: NDArray[np.int64]
    shared_end: int
    tail: NDArray[np.int64] | None

    @cached_property
    def end(self) -> int:
        """First position past the blocks that any row reads."""
        return self.shared_end + (0 if self.tail is None else self.tail.shape[1])

    def start(self, window: int) -> int:
        """First position of the first block that any row sees."""
        first = max(0, int(self.positions.min()) - window + 1) // BLOCK * BLOCK if window else 0
        return first if self.tail is None else min(first, self.shared_end)

    def hidden(self, window: int) -> NDArray[np.bool_]:
        """`[rows, blocks, 1, 1, BLOCK]`: positions that a row must not see."""
        keys = np.arange(self.start(window), self.end)
        ahead = keys[None] > self.positions[:, None]
        if window:
            ahead |= keys[None] <= self.positions[:, None] - window
        return ahead.reshape(len(self.positions), -1, 1, 1, BLOCK)


def groups_of(kv: SequenceKV, placement: Placement, first_row: int) -> list[Group]:
    """The rows of one given, which start at row `first_row` of the pass, cut into groups."""
    groups: list[Group] = []
    rows, straight = len(placement.positions), placement.straight
    for at in range(0, straight, _TOGETHER):
        stop = min(at + _TOGETHER, straight)
        positions = placement.positions[at:stop]
        end = (int(positions[-1]) // BLOCK + 1) * BLOCK
        groups.append(Group(kv, slice(first_row + at, first_row + stop), positions, end, None))
    for at in range(straight, rows, _TOGETHER):
        stop = min(at + _TOGETHER, rows)
        tail = placement.tail[at - straight : stop - straight]
        positions = placement.positions[at:stop]
        groups.append(Group(kv, slice(first_row + at, first_row + stop), positions, placement.tail_start, tail))
    return groups


def attend(group: Group, layer: int, q: Floats, hidden: NDArray[np.bool_], window: int) -> Floats:
    """Softmax attention of a group's rows. q: `[rows, kv_heads, shared, head_dim]`, scaled. Returns the same shape."""
    pieces = _blocks(group, layer, window)
    scores = np.empty((len(q), hidden.shape[1], *q.shape[1:3], BLOCK), np.float32)
    at = 0
    for keys, _ in pieces:
        stop = at + keys.shape[1]
        np.matmul(q[:, None], keys.swapaxes(-1, -2), out=scores[:, at:stop])
        at = stop
    np.copyto(scores, -np.inf, where=hidden)
    peak = scores.max(axis=-1).max(axis=1)
    np.subtract(scores, peak[:, None, :, :, None], out=scores)
    weights = np.exp(scores, out=scores)
    total = _in_order(weights.sum(axis=-1))
    mixed = np.zeros_like(q)
    at = 0
    for _, values in pieces:
        stop = at + values.shape[1]
        mixed = _in_order(np.matmul(weights[:, at:stop], values), mixed)
        at = stop
    return mixed / total[..., None]


def _blocks(group: Group, layer: int, window: int) -> Sequence[tuple[Floats, Floats]]:
    """Keys and values that the rows read, `[1 or rows, blocks, kv_heads, BLOCK, head_dim]`, in the order of positions."""
    k, v = group.kv.k[layer], group.kv.v[layer]
    kv_heads, _, head_dim = k.shape
    pieces: list[tuple[Floats, Floats]] = []
    shared = slice(group.start(window), group.shared_end)
    if shared.start < shared.stop:
        cut = (kv_heads, -1, BLOCK, head_dim)
        pieces.append((k[:, shared].reshape(cut).swapaxes(0, 1)[None], v[:, shared].reshape(cut).swapaxes(0, 1)[None]))
    if group.tail is not None:
        own = (kv_heads, len(group.tail), -1, BLOCK, head_dim)
        order = (1, 2, 0, 3, 4)
        # `take` lays a block out as the cache does; a BLAS may round otherwise where only the strides differ.
        own_k, own_v = np.take(k, group.tail, axis=1), np.take(v, group.tail, axis=1)
        pieces.append((own_k.reshape(own).transpose(order), own_v.reshape(own).transpose(order)))
    return pieces


def _in_order(parts: Floats, total: Floats | None = None) -> Floats:
    """Sum of `[rows, blocks, ...]` over blocks, one after the other: a reduction would choose its own order."""
    total = np.zeros_like(parts[:, 0]) if total is None else total
    for block in range(parts.shape[1]):
        total += parts[:, block]
    return total
