"""What one round decided and did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forerun.core.draft import EMPTY, Draft

if TYPE_CHECKING:
    from forerun.core.request import Request


@dataclass(frozen=True)
class Verdict:
    """A verifier's answer: the accepted nodes from the root down, and the one token the target adds after them.

    Of a lossy rule, one entry for each of these tokens (none for a lossless one):
    differs: whether the target would not have chosen it, under the coupling of the two laws that agrees most often (so
        its mean is the total variation; at temperature 0 it is a fact).
    lost: total variation between the target's law and the law that it was sampled from.
    unasked: whether the target was never asked (plain cascades), so that neither of the two is known.
    """

    path: tuple[int, ...]
    bonus: int
    differs: tuple[bool, ...] = ()
    lost: tuple[float, ...] = ()
    unasked: tuple[bool, ...] = ()

    @property
    def overrides(self) -> int:
        """How many of the tokens the target would not have chosen."""
        return sum(self.differs)

    @property
    def given_up(self) -> float:
        """Total variation, summed over the tokens."""
        return sum(self.lost)


@dataclass(frozen=True)
class Seconds:
    """Where a round's time went. All requests of a pass share the pass, so each is charged the whole of it."""

    draft: float = 0.0
    verify: float = 0.0
    other: float = 0.0

    @property
    def total(self) -> float:
        return self.draft + self.verify + self.other


@dataclass(frozen=True)
class StepResult:
    """One request's share of one round.

    input_tokens: committed tokens that this pass read (a prompt chunk, or the root).
    draft: what was proposed, as the target verified it. path: the accepted nodes that were kept.
    tokens: what was appended to the request: accepted tokens, then the bonus unless the request ended before it.
    decoded: false for a chunk in the middle of a prompt.
    rows: `[1 + nodes, vocab]` logits of a decoding turn, and hidden: layer -> `[input_tokens + nodes, width]`, for drafters
        that asked. Both are views that die with the pass: sessions copy what they keep; later readers find None.
    """

    request: Request
    input_tokens: tuple[int, ...]
    draft: Draft = EMPTY
    path: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    decoded: bool = True
    rows: NDArray[np.float32] | None = None
    hidden: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    seconds: Seconds = Seconds()
    verdict: Verdict | None = None

    @property
    def accepted(self) -> int:
        """How many drafted tokens were kept."""
        return len(self.path)

    def accepted_flags(self) -> Sequence[bool]:
        """Per token of `tokens`, whether it was drafted."""
        return [i < len(self.path) for i in range(len(self.tokens))]

    def trace(self) -> dict[str, Any]:
        """The round as plain data, for `--trace`."""
        return {
            "drafted": list(self.draft.tokens),
            "parents": list(self.draft.parents),
            "source": self.draft.source,
            "accepted_path": list(self.path),
            "tokens": list(self.tokens),
            "bonus": self.tokens[-1] if len(self.tokens) > len(self.path) else None,
            "prompt_tokens_read": len(self.input_tokens) - self.decoded,
            "draft_ms": self.seconds.draft * 1e3,
            "verify_ms": self.seconds.verify * 1e3,
            "other_ms": self.seconds.other * 1e3,
        }
