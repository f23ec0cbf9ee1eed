"""What a model promises: one operation, `forward`, over sequences whose keys and values it owns.

A pass works on *inputs*: for each sequence, a chain of committed tokens that its KV has not read yet (the last one is the
root, or a chunk of a prompt) and a draft hanging off the last of them. Prefill, decode and verify are this one operation.
An input's rows of logits are: row 0 after the last committed token, row `1 + node` after each node.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from forerun.core.draft import EMPTY, Draft

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class ModelInfo:
    """What a loaded model is and can do.

    vocab_size: ids the model has rows for; ids at or past `usable_vocab` are padding and are never sampled.
    context: the most tokens a sequence may hold.
    tree: whether one pass can verify a tree; without it drafts are cut to chains.
    rollback: whether a sequence can be cut back; without it nothing can be drafted.
    batch_invariant: whether a row's logits are the same bits whatever else is in the pass.
    hidden: how many layers can report hidden states (0: none).
    width: size of a hidden state.
    head_rows: columns of its logits where these stand for some ids only, known to what cut the head; 0: `vocab_size`.
    """

    name: str
    backend: str
    vocab_size: int
    usable_vocab: int
    context: int
    tree: bool = True
    rollback: bool = True
    batch_invariant: bool = True
    hidden: int = 0
    width: int = 0
    head_rows: int = 0


class KV(Protocol):
    """The cache of one sequence, owned by the model that opened it."""

    @property
    def length(self) -> int:
        """How many committed tokens it has read."""
        ...

    def pages_needed(self, length: int) -> int:
        """How many of the model's free pages a pass would take that stores tokens up to `length` (see `Room`)."""
        ...

    def truncate(self, length: int) -> None:
        """Forget everything past `length` tokens. Raises ValueError when there are fewer."""
        ...

    def fork(self) -> KV:
        """A new sequence that starts with the same tokens; the two then grow apart."""
        ...

    def close(self) -> None:
        """Release the memory. Closing twice is harmless."""
        ...


@dataclass(frozen=True)
class Room:
    """The memory for keys and values, in pages of `page` tokens: how many are free now, and how many there are."""

    free: int
    total: int
    page: int

    def pages(self, tokens: int) -> int:
        """Pages that hold so many tokens of one sequence."""
        return -(-tokens // self.page)


# For models that do not bound their memory.
UNLIMITED = Room(1 << 40, 1 << 40, 64)


@dataclass(frozen=True)
class Needs:
    """What a pass must report besides the logits of drafted rows.

    hidden: layers whose hidden states are wanted (the output of layer i; -1 is the final norm's output).
    every_row: logits after every input token too, for perplexity.
    """

    hidden: tuple[int, ...] = ()
    every_row: bool = False


NOTHING = Needs()


@dataclass(frozen=True)
class ForwardInput:
    """One sequence's share of a pass: committed tokens that its KV has not read (at least one), then a draft.

    logits: false for a chunk in the middle of a prompt, where the result is not used (the draft is empty then).
    """

    kv: KV
    input_tokens: tuple[int, ...]
    draft: Draft = field(default=EMPTY)
    logits: bool = True


class ForwardOutput(Protocol):
    """The result of one pass, valid until its context manager is left."""

    def logits(self, index: int) -> Floats:
        """`[1 + nodes, vocab]` of input `index`; `[input tokens + nodes, vocab]` with `Needs.every_row`."""
        ...

    def hidden(self, index: int, layer: int) -> Floats:
        """`[input tokens + nodes, width]` of input `index` at a layer asked for in `Needs.hidden`."""
        ...

    def commit(self, index: int, path: Sequence[int]) -> None:
        """Keep the input tokens and the nodes of `path` (root to leaf) of input `index`; the other nodes are lost."""
        ...


class Model(Protocol):
    """A language model behind one operation. What is not committed when the context is left rolls back."""

    @property
    def info(self) -> ModelInfo:
        """What it is and can do."""
        ...

    def open(self) -> KV:
        """An empty sequence."""
        ...

    def room(self) -> Room:
        """The memory that is left for keys and values."""
        ...

    def forward(self, inputs: Sequence[ForwardInput], needs: Needs = NOTHING) -> AbstractContextManager[ForwardOutput]:
        """One pass over all inputs. Raises BackendError when it is entered, leaving every sequence as it was."""
        ...

    def close(self) -> None:
        """Let go of the weights. Closing twice is harmless."""
        ...


@runtime_checkable
class Borrower(Protocol):
    """A model that can go on from another one's keys and values: that one's first layers, or the same ones rounded."""

    def borrow(self, kv: KV) -> KV:
        """A sequence of this model with the tokens of the other's; the two then grow apart. Raises BackendError."""
        ...


@runtime_checkable
class StoredKV(KV, Protocol):
    """A sequence whose keys and values can be kept outside of the process."""

    def store(self) -> NDArray[np.uint8]:
        """The committed keys and values as bytes, for `Storage.restore` of a model of the same file and settings."""
        ...


@runtime_checkable
class Storage(Protocol):
    """A model that can read keys and values from where they were stored."""

    def restore(self, stored: NDArray[np.uint8], length: int) -> KV:
        """A sequence of `length` tokens from what `StoredKV.store` gave. Raises BackendError where it does not fit."""
        ...
