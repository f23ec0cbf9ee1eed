"""Counting speculation with the field's definitions (vLLM and llama.cpp count the same way).

A *step* is a round that verified at least one drafted token.

    draft acceptance rate      accepted / drafted
    mean acceptance length     1 + accepted / steps, the bonus included
    per-position rate          accepted at position i / steps, unconditional
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from forerun.core.step import Seconds, StepResult


@dataclass
class Stats:
    """Counters of one request, or of many added up."""

    rounds: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    overrides: int = 0
    given_up: float = 0.0
    unasked: int = 0
    histogram: list[int] = field(default_factory=list)
    draft_s: float = 0.0
    verify_s: float = 0.0
    other_s: float = 0.0

    def add(self, result: StepResult) -> None:
        """Count one round; rounds that only read a prompt count no speculation."""
        self._time(result.seconds)
        if not result.decoded:
            return
        self.rounds += 1
        self.tokens += len(result.tokens)
        if result.verdict is not None:
            kept = len(result.tokens)  # a text may end before a verdict does
            self.overrides += sum(result.verdict.differs[:kept])
            self.given_up += sum(result.verdict.lost[:kept])
            self.unasked += sum(result.verdict.unasked[:kept])
        if len(result.draft):
            self.steps += 1
            self.drafted += len(result.draft)
            self.accepted += result.accepted
            self.histogram.extend([0] * (result.accepted + 1 - len(self.histogram)))
            self.histogram[result.accepted] += 1

    def merge(self, other: Stats) -> None:
        """Add another's counters to these."""
        for name in ("rounds", "steps", "drafted", "accepted", "tokens", "overrides", "given_up", "unasked"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self._time(Seconds(other.draft_s, other.verify_s, other.other_s))
        self.histogram.extend([0] * (len(other.histogram) - len(self.histogram)))
        for length, count in enumerate(other.histogram):
            self.histogram[length] += count

    def _time(self, seconds: Seconds) -> None:
        self.draft_s += seconds.draft
        self.verify_s += seconds.verify
        self.other_s += seconds.other

    @property
    def mean_acceptance_length(self) -> float:
        return 1.0 + self.accepted / self.steps if self.steps else 1.0

    @property
    def draft_acceptance_rate(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def per_position_acceptance_rate(self) -> list[float]:
        """Element i: the share of steps that accepted at least i + 1 drafted tokens."""
        return [sum(self.histogram[i:]) / self.steps for i in range(1, len(self.histogram))]

    def cascade(self, rule: str) -> dict[str, Any]:
        """The `metrics.cascade` block of a response: what a lossy rule gave up.

        Overrides are tokens that the target would not have chosen, and the total variation is a mean over all tokens.
        Of tokens about which the target was not asked (plain cascades) nothing is known: both are None then.
        """
        told = self.unasked == 0
        return {
            "rule": rule,
            "num_tokens": self.tokens,
            "num_overrides": self.overrides if told else None,
            "mean_total_variation": self.given_up / max(1, self.tokens) if told else None,
            "num_unasked": self.unasked,
        }

    def as_dict(self) -> dict[str, Any]:
        """The `metrics.speculative_decoding` block of a response."""
        return {
            "mean_acceptance_length": self.mean_acceptance_length,
            "draft_acceptance_rate": self.draft_acceptance_rate,
            "acceptance_histogram": list(self.histogram),
            "num_spec_steps": self.steps,
            "num_rounds": self.rounds,
            "num_accepted_draft_tokens": self.accepted,
            "num_draft_tokens": self.drafted,
            "per_position_acceptance_rate": self.per_position_acceptance_rate,
        }
