"""Several constraints at once, and how one is asked whether it would have let a path happen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from forerun.core.transcript import Constraint
from forerun.errors import UsageError

Mask = NDArray[np.bool_]


def all_of(constraints: Sequence[Constraint]) -> Constraint:
    """What every one of them allows. Raises UsageError for none."""
    if not constraints:
        raise UsageError("no constraint was given; give at least one.")
    return constraints[0] if len(constraints) == 1 else _AllOf(constraints)


class _AllOf:
    """See core.transcript.Constraint."""

    def __init__(self, constraints: Sequence[Constraint]) -> None:
        self._constraints = tuple(constraints)

    def allowed(self, path: Sequence[int]) -> Mask | None:
        result: Mask | None = None
        for constraint in self._constraints:
            mask = constraint.allowed(path)
            if mask is not None:
                result = mask if result is None else both(result, mask)
        if result is not None and not result.any() and not leads_along(self, path):
            # Nobody will ever be there, but rules that look at refused nodes want a distribution.
            return None
        return result

    def commit(self, token: int) -> None:
        for constraint in self._constraints:
            constraint.commit(token)

    def restart(self, tokens: Sequence[int]) -> None:
        for constraint in self._constraints:
            constraint.restart(tokens)


def both(one: Mask, other: Mask) -> Mask:
    """What two masks allow; ids past the end of one are not."""
    size = min(len(one), len(other))
    result: Mask = one[:size] & other[:size]
    return result


def leads_along(constraint: Constraint, path: Sequence[int]) -> bool:
    """Whether a constraint allows each token of a path in its place."""
    for place, token in enumerate(path):
        mask = constraint.allowed(path[:place])
        if mask is not None and not (0 <= token < len(mask) and mask[token]):
            return False
    return True
