"""What a lossy rule says of each token that it let pass, and the sum of it over a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forerun.core.protocols import Rng
from forerun.core.step import StepResult, Verdict
from forerun.verifiers.distributions import Probs, acceptance


@dataclass(frozen=True)
class LossyVerdict(Verdict):
    """A verdict with one entry for each of its tokens.

    overrides: whether the target would not have chosen it, under the coupling of the two distributions that agrees most
        often (so its mean is the total variation; at temperature 0 it is a fact).
    lost: total variation between the target's distribution and the one that it was sampled from.
    not_deferred: whether the target was not asked (plain cascades), so that neither of the two is known.
    """

    overrides: tuple[bool, ...] = ()
    lost: tuple[float, ...] = ()
    not_deferred: tuple[bool, ...] = ()


@dataclass
class LossyStats:
    """The same, counted over a text or over several."""

    tokens: int = 0
    overrides: int = 0
    lost: float = 0.0
    not_deferred: int = 0

    def add(self, result: StepResult) -> None:
        """Count one step; a text may end before a verdict does."""
        kept = len(result.tokens)
        self.tokens += kept
        if isinstance(result.verdict, LossyVerdict):
            self.overrides += sum(result.verdict.overrides[:kept])
            self.lost += sum(result.verdict.lost[:kept])
            self.not_deferred += sum(result.verdict.not_deferred[:kept])

    def merge(self, told: Mapping[str, Any]) -> None:
        """Count another text, of which `as_dict` told this."""
        self.tokens += told["num_tokens"]
        self.overrides += told["num_overrides"] or 0
        self.lost += (told["mean_total_variation"] or 0.0) * told["num_tokens"]
        self.not_deferred += told["num_not_deferred"]

    def as_dict(self, rule: str) -> dict[str, Any]:
        """The `metrics.cascade` block of a response: what a lossy rule gave up.

        Overrides are tokens that the target would not have chosen, and the total variation is a mean over all tokens. Of
        tokens about which the target was not asked nothing is known: both are None where there are any.
        """
        known = self.not_deferred == 0
        return {
            "rule": rule,
            "num_tokens": self.tokens,
            "num_overrides": self.overrides if known else None,
            "mean_total_variation": self.lost / max(1, self.tokens) if known else None,
            "num_not_deferred": self.not_deferred,
        }


def is_override(p: Probs, pi: Probs, token: int, rng: Rng) -> bool:
    """Whether the target would not have chosen `token`, drawn from `pi`, under the coupling that agrees most often.

    Given the token the two agree with probability min(1, p / pi), so the mean is TV(p, pi); at temperature 0 it is a fact.
    """
    return not rng.accept(acceptance(p[token], pi[token]))
