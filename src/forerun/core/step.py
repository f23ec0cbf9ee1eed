"""What one step decided and did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.core.choosing import TokenLogprob
from forerun.core.draft import EMPTY, ROOT, Draft
from forerun.core.transcript import Transcript


@dataclass(frozen=True)
class Verdict:
    """A verifier's answer: the accepted nodes from the root down, and the one token the target adds after them."""

    path: tuple[int, ...]
    bonus: int


@dataclass(frozen=True)
class Seconds:
    """Where a step's time went. All sequences of a pass share the pass, so each is charged the whole of it."""

    draft: float = 0.0
    verify: float = 0.0
    other: float = 0.0

    @property
    def total(self) -> float:
        return self.draft + self.verify + self.other


@dataclass(frozen=True)
class StepResult:
    """One sequence's share of one step.

    sequence: its text, this step's tokens included.
    input_tokens: committed tokens that this pass read (a prompt chunk, or the root).
    draft: what was proposed, as the target verified it. path: the accepted nodes that were kept.
    tokens: what was appended: accepted tokens, then the bonus unless the text ended before it.
    decoded: false for a chunk in the middle of a prompt.
    logprobs: of `tokens`, where the request asked for them.
    rows: `[1 + nodes, vocab]` logits of a decoding step. hidden: layer -> `[input tokens + nodes, width]`, for drafters that
        asked. Both are views that die with the pass: sessions copy what they keep; later readers find None.
    """

    sequence: Transcript
    input_tokens: tuple[int, ...] = ()
    draft: Draft = EMPTY
    path: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    decoded: bool = True
    logprobs: tuple[TokenLogprob, ...] = ()
    rows: NDArray[np.float32] | None = None
    hidden: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    seconds: Seconds = Seconds()
    verdict: Verdict | None = None

    @property
    def accepted(self) -> int:
        """How many drafted tokens were kept."""
        return len(self.path)

    @property
    def bonus_row(self) -> int:
        """Which of `rows` the bonus was chosen from."""
        return 1 + (self.path[-1] if self.path else ROOT)

    def accepted_flags(self) -> Sequence[bool]:
        """Per token of `tokens`, whether it was drafted."""
        return [i < len(self.path) for i in range(len(self.tokens))]

    def trace(self) -> dict[str, Any]:
        """The step as plain data, for `--trace`."""
        return {
            "drafted": list(self.draft.tokens),
            "parents": list(self.draft.parents),
            "source": self.draft.source,
            "sources": [self.draft.source_of(node) for node in range(len(self.draft))],
            "accepted_path": list(self.path),
            "tokens": list(self.tokens),
            "bonus": self.tokens[-1] if len(self.tokens) > len(self.path) else None,
            "prompt_tokens_read": len(self.input_tokens) - self.decoded,
            "draft_ms": self.seconds.draft * 1e3,
            "verify_ms": self.seconds.verify * 1e3,
            "other_ms": self.seconds.other * 1e3,
        }
