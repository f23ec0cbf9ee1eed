"""Arrays of a vocabulary's size that are used again: fresh pages for each cost several times the arithmetic on them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Arrays kept between steps; what goes past them is made and forgotten.
_KEPT = 24


class Scratch:
    """Lends float64 arrays until `rewind`. For one thread, and for values that are not kept past the step."""

    def __init__(self) -> None:
        self._arrays: list[NDArray[np.float64]] = []
        self._lent = 0

    def array(self, size: int) -> NDArray[np.float64]:
        """An array `[size]` of whatever was last written there."""
        at = self._lent
        self._lent += 1
        if at < len(self._arrays) and len(self._arrays[at]) == size:
            return self._arrays[at]
        made = np.empty(size)
        if at < len(self._arrays):
            self._arrays[at] = made
        elif at < _KEPT:
            self._arrays.append(made)
        return made

    def rewind(self) -> None:
        """Everything lent may be lent again."""
        self._lent = 0
