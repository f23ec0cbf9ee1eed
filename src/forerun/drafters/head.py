"""A draft model's head over frequent tokens only (FR-Spec, Zhao et al. 2502.14856), and the other tokens of the text.

The head of a small model is a large part of its pass, and nearly all of what it is to propose are a few thousand ids.
Ids outside have q = 0, which every rule allows. Rare ids that occur in a text are likely to come again in it
(names, numbers, another script), so these are scored too: a product each with what the head saw.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from forerun.core.model import Floats
from forerun.core.transcript import Transcript

# Most ids of one text that are scored beside the head.
_MOST = 2048


@dataclass(frozen=True, eq=False)
class Head:
    """Which ids a head has rows for.

    ids: the id of each row. vectors: the whole head's rows of given ids, `[ids, width]`, to score others by; None where
        only the head's own ids are to be proposed.
    vocabulary: ids that there are.
    """

    ids: NDArray[np.int64]
    vocabulary: int
    vectors: Callable[[NDArray[np.int64]], Floats] | None = None

    @cached_property
    def covered(self) -> NDArray[np.bool_]:
        """`[vocabulary]`: whether the head has a row for an id."""
        covered = np.zeros(self.vocabulary, dtype=np.bool_)
        covered[self.ids[self.ids < self.vocabulary]] = True
        return covered


class Widened:
    """The ids of one text that a head has no rows for, in the order in which they came up."""

    def __init__(self, head: Head, transcript: Transcript) -> None:
        self._head, self._transcript = head, transcript
        self._known = head.covered.copy() if head.vectors is not None else head.covered
        self._read = 0
        self.ids: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._vectors: Floats | None = None

    def fill(self, wide: Floats, state: Floats) -> None:
        """Score them by what the head saw, `state` `[width]`, into a row `wide` `[vocabulary]`."""
        self._catch_up()
        if self._vectors is not None:
            wide[self.ids] = self._vectors @ state

    def _catch_up(self) -> None:
        tokens, vectors = self._transcript.tokens, self._head.vectors
        if self._read == len(tokens) or vectors is None or len(self.ids) >= _MOST:
            return
        fresh = np.unique(np.array(tokens[self._read :], dtype=np.int64))
        self._read = len(tokens)
        fresh = fresh[(fresh < self._head.vocabulary)]
        fresh = fresh[~self._known[fresh]][: _MOST - len(self.ids)]
        if len(fresh):
            self._known[fresh] = True
            new = vectors(fresh)
            self.ids = np.concatenate([self.ids, fresh])
            self._vectors = new if self._vectors is None else np.concatenate([self._vectors, new])
