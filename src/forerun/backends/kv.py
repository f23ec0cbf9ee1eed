"""KV as a transaction, and where the rows of a pass stand in it: what backends with KV in numpy arrays share.

A pass writes its input tokens and then its nodes into the slots behind the committed ones. `keep` moves one path into
place; whatever is not kept rolls back. So committed slots are always in the order of positions, and every slot behind
them is zero between passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.core.draft import ROOT, Draft
from forerun.core.model import Floats
from forerun.errors import BackendError

# Slots per block: capacities are multiples of it, and attention works on whole blocks of absolute positions.
BLOCK = 64


class SequenceKV:
    """Keys and values of one sequence, `[layers, kv_heads, capacity, head_dim]` each, growing in powers of two.

    owner: the model that opened it, the only one that may read it.
    """

    def __init__(self, owner: object, layers: int, kv_heads: int, head_dim: int) -> None:
        self.owner = owner
        self.closed = False
        self._length = 0
        self._forced = self._nodes = 0
        self._open = False
        self.k: Floats = np.zeros((layers, kv_heads, 0, head_dim), np.float32)
        self.v: Floats = self.k

    @property
    def length(self) -> int:
        return self._length

    @property
    def in_pass(self) -> bool:
        """Whether a pass has written slots that are neither kept nor rolled back."""
        return self._open

    def begin(self, input_tokens: int, nodes: int) -> None:
        """Make room for a pass's rows behind the committed ones. Raises MemoryError, changing nothing."""
        assert not self.closed, "checked by the model"
        assert not self._open, "checked by the model"
        self._grow(self._length + input_tokens + nodes)
        self._forced, self._nodes, self._open = input_tokens, nodes, True

    def write(self, layer: int, k: Floats, v: Floats) -> None:
        """Put a pass's rows `[rows, kv_heads, head_dim]` of one layer into their slots."""
        rows = slice(self._length, self._length + len(k))
        self.k[layer, :, rows] = k.swapaxes(0, 1)
        self.v[layer, :, rows] = v.swapaxes(0, 1)

    def keep(self, path: Sequence[int]) -> None:
        """Commit the input tokens and the nodes of `path`, in its order; the other nodes are lost."""
        root = self._length + self._forced
        if list(path) != list(range(len(path))):
            slots = root + np.asarray(path)
            self.k[:, :, root : root + len(path)] = self.k[:, :, slots]
            self.v[:, :, root : root + len(path)] = self.v[:, :, slots]
        self._end(root + len(path))

    def roll_back(self) -> None:
        """Forget what the pass wrote. Harmless when nothing is open."""
        if self._open:
            self._end(self._length)

    def pages_needed(self, length: int) -> int:  # noqa: ARG002
        """None of the pages that are counted (core.model.UNLIMITED): arrays grow as long as there is memory."""
        return 0

    def truncate(self, length: int) -> None:
        """Forget everything past `length` tokens. Raises ValueError when there are fewer, or in the middle of a pass."""
        if self._open:
            raise ValueError("cannot cut a sequence in the middle of a pass: commit first, or leave the pass")
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot cut {self._length} tokens back to {length}")
        self._clear(length, self._length)
        self._length = length

    def fork(self) -> SequenceKV:
        """A copy of what is committed. Raises BackendError once closed, or when memory runs out."""
        return self.lend(self.owner, len(self.k))

    def lend(self, owner: object, layers: int) -> SequenceKV:
        """A copy of the first layers of what is committed, for another model. Raises as `fork` does."""
        if self.closed:
            raise BackendError("cannot fork a closed sequence: open a new one")
        _, kv_heads, _, head_dim = self.k.shape
        copy = SequenceKV(owner, layers, kv_heads, head_dim)
        try:
            copy._grow(self._length)
        except MemoryError as error:
            raise BackendError("out of memory for another sequence: run fewer at a time") from error
        copy.k[:, :, : self._length] = self.k[:layers, :, : self._length]
        copy.v[:, :, : self._length] = self.v[:layers, :, : self._length]
        copy._length = self._length
        return copy

    def close(self) -> None:
        """Release the memory; also in the middle of a pass, which then has nothing to roll back."""
        self.closed, self._open = True, False
        self._length = 0
        self.k = self.v = self.k[:, :, :0].copy()

    def snapshot(self, layer: int) -> tuple[Floats, Floats]:
        """Copies of the committed keys and values of a layer, `[kv_heads, length, head_dim]` each."""
        return self.k[layer, :, : self._length].copy(), self.v[layer, :, : self._length].copy()

    @property
    def nbytes(self) -> int:
        """Bytes held, capacity included."""
        return self.k.nbytes + self.v.nbytes

    def _end(self, length: int) -> None:
        self._clear(length, self._length + self._forced + self._nodes)
        self._length, self._forced, self._nodes, self._open = length, 0, 0, False

    def _clear(self, first: int, last: int) -> None:
        # Attention multiplies slots past a row's own with zero, so what is left there must be finite.
        self.k[:, :, first:last] = 0
        self.v[:, :, first:last] = 0

    def _grow(self, slots: int) -> None:
        layers, kv_heads, capacity, head_dim = self.k.shape
        if slots <= capacity:
            return
        capacity = -(-max(slots, 2 * capacity) // BLOCK) * BLOCK
        k, v = (np.zeros((layers, kv_heads, capacity, head_dim), np.float32) for _ in range(2))
        k[:, :, : self._length] = self.k[:, :, : self._length]
        v[:, :, : self._length] = self.v[:, :, : self._length]
        self.k, self.v = k, v


@dataclass(frozen=True)
class Placement:
    """Where the rows of one input stand: input tokens first, then nodes.

    positions: `[rows]`, absolute; a node's is its depth past the root.
    straight: how many leading rows find everything that they may read in the slot of its position.
    tail_start: first position of the blocks that hold nodes, a multiple of BLOCK.
    tail: `[rows - straight, tail positions]`, for each branching row the slot of every position from `tail_start`
        along the row's own path; slot 0 past its end.
    """

    positions: NDArray[np.int64]
    straight: int
    tail_start: int
    tail: NDArray[np.int64]


def place(start: int, input_tokens: int, draft: Draft) -> Placement:
    """Place `input_tokens` tokens and the nodes of `draft` behind `start` committed tokens."""
    chain = np.arange(start, start + input_tokens, dtype=np.int64)
    root = start + input_tokens - 1
    positions = np.concatenate([chain, root + np.asarray(draft.depths, dtype=np.int64)])
    if draft.is_chain:
        return Placement(positions, len(positions), 0, np.zeros((0, 0), np.int64))
    first = (root + 1) // BLOCK * BLOCK
    last = (int(positions.max()) // BLOCK + 1) * BLOCK
    trunk = np.arange(first, last, dtype=np.int64)
    trunk[trunk > root] = 0
    tail = np.empty((len(draft), last - first), np.int64)
    for node, parent in enumerate(draft.parents):
        tail[node] = trunk if parent == ROOT else tail[parent]
        tail[node, positions[input_tokens + node] - first] = root + 1 + node
    return Placement(positions, input_tokens, first, tail)
