"""Counting speculation with the field's definitions (vLLM and llama.cpp count the same way).

A *speculative step* is a step that verified at least one drafted token.

    draft acceptance rate      accepted / drafted
    mean acceptance length     1 + accepted / speculative steps, the bonus included
    per-position rate          accepted at position i / speculative steps, unconditional
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from forerun.core.step import Seconds, StepResult


@dataclass
class Counted:
    """Nodes of one drafter that were verified, and those of them that were kept."""

    drafted: int = 0
    accepted: int = 0


@dataclass
class Stats:
    """Counters of one request, or of many added up.

    steps: passes that wrote tokens; spec_steps: those that drafted. sources: by drafter.
    """

    steps: int = 0
    spec_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    histogram: list[int] = field(default_factory=list)
    sources: dict[str, Counted] = field(default_factory=dict)
    draft_s: float = 0.0
    verify_s: float = 0.0
    other_s: float = 0.0

    def add(self, result: StepResult) -> None:
        """Count one step; steps that only read a prompt count no speculation."""
        self._time(result.seconds)
        if not result.decoded:
            return
        self.steps += 1
        self.tokens += len(result.tokens)
        if len(result.draft):
            self.spec_steps += 1
            self.drafted += len(result.draft)
            self.accepted += result.accepted
            self.histogram.extend([0] * (result.accepted + 1 - len(self.histogram)))
            self.histogram[result.accepted] += 1
            for node in range(len(result.draft)):
                self._of(result.draft.source_of(node)).drafted += 1
            for node in result.path:
                self._of(result.draft.source_of(node)).accepted += 1

    def merge(self, other: Stats) -> None:
        """Add another's counters to these."""
        for name in ("steps", "spec_steps", "drafted", "accepted", "tokens"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self._time(Seconds(other.draft_s, other.verify_s, other.other_s))
        self.histogram.extend([0] * (len(other.histogram) - len(self.histogram)))
        for length, count in enumerate(other.histogram):
            self.histogram[length] += count
        for source, counted in other.sources.items():
            self._of(source).drafted += counted.drafted
            self._of(source).accepted += counted.accepted

    def _of(self, source: str) -> Counted:
        return self.sources.setdefault(source, Counted())

    def _time(self, seconds: Seconds) -> None:
        self.draft_s += seconds.draft
        self.verify_s += seconds.verify
        self.other_s += seconds.other

    @property
    def mean_acceptance_length(self) -> float:
        return 1.0 + self.accepted / self.spec_steps if self.spec_steps else 1.0

    @property
    def draft_acceptance_rate(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def per_position_acceptance_rate(self) -> list[float]:
        """Element i: the share of speculative steps that accepted at least i + 1 drafted tokens."""
        return [sum(self.histogram[i:]) / self.spec_steps for i in range(1, len(self.histogram))]

    def as_dict(self) -> dict[str, Any]:
        """The `metrics.speculative_decoding` block of a response."""
        return {
            "mean_acceptance_length": self.mean_acceptance_length,
            "draft_acceptance_rate": self.draft_acceptance_rate,
            "acceptance_histogram": list(self.histogram),
            "num_spec_steps": self.spec_steps,
            "num_steps": self.steps,
            "num_accepted_draft_tokens": self.accepted,
            "num_draft_tokens": self.drafted,
            "per_position_acceptance_rate": self.per_position_acceptance_rate,
        }
