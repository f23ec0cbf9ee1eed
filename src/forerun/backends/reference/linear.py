"""Matrix products whose rows do not depend on one another, bit for bit.

A BLAS chooses its kernel, and with it the order of sums, by the shape of the matrices. So every product here is cut into
pieces of one shape: LANES rows (the missing ones zero) times OUT_TILE outputs times IN_TILE inputs, the pieces of the
inputs added in order. How many rows a pass has changes how many such products are made, never what one of them computes.
The tile is also small enough for a BLAS to compute it on the calling thread, at once and without repacking the weights.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np

from forerun.backends.reference.workers import Workers
from forerun.core.model import Floats

LANES = 16
OUT_TILE = 32
IN_TILE = 1024
# Products of fewer multiply-adds than this are not worth waking a thread.
_WORTH_SHARING = 1 << 21


class Linear:
    """`x @ weight.T + bias` for any number of rows, each with the same bits as alone.

    weight: `[outputs, inputs]`. bias: `[outputs]` or None.
    lanes: rows put into one product; by default LANES, or 1 where the BLAS turns out to treat the lanes differently.
    """

    def __init__(
        self, weight: Floats, bias: Floats | None = None, *, workers: Workers, lanes: int | None = None
    ) -> None:
        self.outputs, self.inputs = weight.shape
        self._weight = np.ascontiguousarray(weight, np.float32)
        self._bias = bias
        self._workers = workers
        self.lanes = (LANES if self._lanes_agree() else 1) if lanes is None else lanes

    def __call__(self, x: Floats) -> Floats:
        """`[rows, inputs]` to `[rows, outputs]`."""
        packed = self._pack(x)
        out = np.empty((len(x), self.outputs), np.float32)
        whole = self.outputs // OUT_TILE
        shares = self._workers.threads if packed.size * self.outputs >= _WORTH_SHARING else 1
        cuts = [whole * share // shares * OUT_TILE for share in range(shares + 1)]
        tasks = [
            partial(self._tiles, packed, out, first, last, OUT_TILE) for first, last in pairwise(cuts) if first < last
        ]
        if cuts[-1] < self.outputs:
            tasks.append(partial(self._tiles, packed, out, cuts[-1], self.outputs, self.outputs - cuts[-1]))
        self._workers.run(tasks)
        if self._bias is not None:
            out += self._bias
        return out

    def _pack(self, x: Floats) -> Floats:
        """`[rows, inputs]` to `[blocks, inputs, LANES]`, zero where a block has fewer rows than lanes."""
        blocks = -(-len(x) // self.lanes)
        packed = np.zeros((blocks, self.inputs, LANES), np.float32)
        for block in range(blocks):
            rows = x[block * self.lanes : (block + 1) * self.lanes]
            packed[block, :, : len(rows)] = rows.T
        return packed

    def _tiles(self, packed: Floats, out: Floats, first: int, last: int, size: int) -> None:
        """Outputs `first` to `last`, in tiles of `size`."""
        weight = self._weight[first:last].reshape(-1, 1, size, self.inputs)
        total = np.matmul(weight[..., :IN_TILE], packed[:, :IN_TILE])  # [tiles, blocks, size, LANES]
        for at in range(IN_TILE, self.inputs, IN_TILE):
            total += np.matmul(weight[..., at : at + IN_TILE], packed[:, at : at + IN_TILE])
        for block in range(len(packed)):
            rows = out[block * self.lanes : (block + 1) * self.lanes, first:last]
            lanes = total[:, block, :, : len(rows)].transpose(2, 0, 1)
            rows.reshape(len(rows), -1, size)[...] = lanes

    def _lanes_agree(self) -> bool:
        """Whether the same row gives the same bits in every lane, for every shape of product that is used here."""
        row = np.random.default_rng(0).standard_normal((1, self.inputs), np.float32)
        packed = np.repeat(row[..., None], LANES, axis=2)
        tiles = [self._weight[:OUT_TILE], self._weight[self.outputs // OUT_TILE * OUT_TILE :]]
        for tile in (tile for tile in tiles if len(tile)):
            for at in range(0, self.inputs, IN_TILE):
                product = np.matmul(tile[:, at : at + IN_TILE], packed[0, at : at + IN_TILE])
                if not np.array_equal(product, np.repeat(product[:, :1], LANES, axis=1), equal_nan=True):
                    return False
        return True
