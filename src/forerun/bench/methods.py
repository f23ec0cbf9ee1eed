"""Drafting methods against plain decoding: every prompt once per method, in turn, on one loaded target.

The text comes first: a method whose tokens differ from plain decoding's is reported as wrong, and its time is not used.
Ratios compare the same tokens, so they are ratios of seconds: `decode` from the first step's tokens on, `whole` from
asking to the end. Sums of seconds weigh long answers, the mean of the prompts' own ratios does not. All figures of a
method come from the same runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forerun.completion import Completion
from forerun.core.stats import Stats
from forerun.errors import ForerunError

PLAIN = "none"
Ask = Callable[..., Completion]


@dataclass(frozen=True)
class Run:
    """One prompt under one method. same: whether its tokens are plain decoding's."""

    prompt: str
    category: str
    method: str
    same: bool
    completion: Completion

    def as_dict(self) -> dict[str, Any]:
        """A line of the log, without the text."""
        data = self.completion.as_dict()
        for name in ("text", "token_ids"):
            data.pop(name)
        return {"prompt": self.prompt, "category": self.category, "method": self.method, "same": self.same, **data}


@dataclass
class Row:
    """A method over a set of prompts, against plain decoding of the same prompts in the same run."""

    method: str
    category: str
    prompts: int = 0
    different: int = 0
    tokens: int = 0
    decode_s: float = 0.0
    plain_decode_s: float = 0.0
    whole_s: float = 0.0
    plain_whole_s: float = 0.0
    stats: Stats = field(default_factory=Stats)
    ratios: list[float] = field(default_factory=list)  # of the prompts, one by one

    def add(self, run: Run, plain: Run) -> None:
        """Count one prompt; one with another text counts as different and nothing else."""
        self.prompts += 1
        if not run.same:
            self.different += 1
            return
        ours, theirs = run.completion.timings, plain.completion.timings
        self.tokens += run.completion.usage.completion_tokens
        self.decode_s += ours.decode_s
        self.plain_decode_s += theirs.decode_s
        self.whole_s += ours.ttft_s + ours.decode_s
        self.plain_whole_s += theirs.ttft_s + theirs.decode_s
        self.stats.merge(run.completion.stats)
        if ours.decode_s > 0:
            self.ratios.append(theirs.decode_s / ours.decode_s)

    @property
    def decode_ratio(self) -> float:
        """Plain decoding's seconds over this method's, from the first step on; above 1 is faster."""
        return self.plain_decode_s / self.decode_s if self.decode_s > 0 else float("nan")

    @property
    def mean_ratio(self) -> float:
        """The mean over the prompts of the same: long answers count no more than short ones."""
        return sum(self.ratios) / len(self.ratios) if self.ratios else float("nan")

    @property
    def whole_ratio(self) -> float:
        """The same with the prompt's reading included."""
        return self.plain_whole_s / self.whole_s if self.whole_s > 0 else float("nan")

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.decode_s if self.decode_s > 0 else float("nan")

    def shares(self) -> tuple[float, float, float]:
        """Shares of the steps' time spent drafting, verifying and on the rest."""
        parts = (self.stats.draft_s, self.stats.verify_s, self.stats.other_s)
        total = sum(parts) or float("nan")
        return parts[0] / total, parts[1] / total, parts[2] / total

    def as_dict(self) -> dict[str, Any]:
        draft, verify, rest = self.shares()
        return {
            "method": self.method,
            "category": self.category,
            "prompts": self.prompts,
            "different": self.different,
            "tokens": self.tokens,
            "decode_ratio": self.decode_ratio,
            "mean_ratio": self.mean_ratio,
            "whole_ratio": self.whole_ratio,
            "tokens_per_second": self.tokens_per_second,
            "mean_acceptance_length": self.stats.mean_acceptance_length,
            "draft_acceptance_rate": self.stats.draft_acceptance_rate,
            "tokens_per_step": self.stats.tokens / max(1, self.stats.steps),
            "draft_share": draft,
            "verify_share": verify,
            "other_share": rest,
        }


def run_methods(
    methods: Mapping[str, Ask], prompts: Sequence[tuple[str, str, Any]], *, seed: int = 0, **sampling: Any
) -> Iterator[Run]:
    """Ask every prompt, (id, category, prompt), under every method, starting with another method each time.

    methods: `LLM.generate` of LLMs that share one target; one of them is PLAIN. Prompt i is sampled with seed + i under
    all of them. Raises ForerunError when there is nothing to compare with.
    """
    if PLAIN not in methods:
        raise ForerunError(f"a benchmark needs the method {PLAIN!r} to compare with; add it.")
    if not prompts:
        raise ForerunError("there are no prompts to run; give a file with at least one.")
    names = list(methods)
    for index, (name, category, prompt) in enumerate(prompts):
        turn = names[index % len(names) :] + names[: index % len(names)]
        done = {method: methods[method](prompt, seed=seed + index, **sampling) for method in turn}
        expected = done[PLAIN].token_ids
        for method in names:
            yield Run(name, category, method, done[method].token_ids == expected, done[method])


def tabulate(runs: Sequence[Run]) -> list[Row]:
    """One row per method and category, then one per method over all (category `all`)."""
    plain = {run.prompt: run for run in runs if run.method == PLAIN}
    rows: dict[tuple[str, str], Row] = {}
    for run in runs:
        for category in (run.category, "all"):
            row = rows.setdefault((category, run.method), Row(run.method, category))
            row.add(run, plain[run.prompt])
    return sorted(rows.values(), key=lambda row: row.category == "all")
