"""The cost-quality curve of cascades: speed against agreement with the target, and a task score where answers are known.

For one pair of models, on the same prompts in one run, greedily: the target alone, the drafter alone, lossless
speculation, the plain cascade (no speculation: the drafter alone decides when to ask), and speculative cascades by rule
and strength. *Agreement* is measured afterwards and untimed, the same way for all: the share of the tokens written that
the target chooses itself after the same text. The *score* is the share of prompts whose text has the answer in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from forerun.cascade.mixtures import RULES
from forerun.cascade.verdict import LossyStats
from forerun.completion import Completion
from forerun.core.draft import Draft
from forerun.core.model import ForwardInput, Model
from forerun.core.stats import Stats

TARGET, DRAFTER, LOSSLESS, PLAIN = "target", "drafter", "lossless", "plain"
# Tokens read in one pass.
_READ = 256
# Tokens judged in one pass, each of which needs a row of logits.
_JUDGED = 32


class Writer(Protocol):
    """What is measured: an `LLM`."""

    def generate(self, prompt: str, /, *, system: str | None, max_tokens: int, seed: int) -> Completion: ...

    def encode(self, prompt: str, /, *, system: str | None = None) -> list[int]: ...


@dataclass(frozen=True)
class Ask:
    """A prompt and the answers that count as right (none: the prompt is not scored)."""

    name: str
    prompt: str
    answers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Method:
    """A point of the curve: what runs, and how strongly (None where there is no alpha)."""

    kind: str
    alpha: float | None = None

    @property
    def name(self) -> str:
        return self.kind if self.alpha is None else f"{self.kind}:{self.alpha:g}"


@dataclass(frozen=True)
class Run:
    """One prompt under one method. agreeing: how many of its tokens the target chooses itself. right: None if not scored."""

    ask: Ask
    method: Method
    completion: Completion
    agreeing: int
    right: bool | None

    def as_dict(self) -> dict[str, Any]:
        """A line of the log."""
        told = {"prompt": self.ask.name, "method": self.method.name, "agreeing": self.agreeing, "right": self.right}
        return told | self.completion.as_dict()


@dataclass
class Point:
    """A method over all prompts."""

    method: Method
    prompts: int = 0
    tokens: int = 0
    agreeing: int = 0
    scored: int = 0
    right: int = 0
    timed: float = 0.0
    decode_s: float = 0.0
    stats: Stats = field(default_factory=Stats)
    given_up: LossyStats = field(default_factory=LossyStats)

    def add(self, run: Run) -> None:
        timings = run.completion.timings
        self.prompts += 1
        self.tokens += run.completion.usage.completion_tokens
        self.agreeing += run.agreeing
        self.scored += run.right is not None
        self.right += run.right is True
        # The tokens after the first step, which are what decode_s is the time of.
        self.timed += timings.tokens_per_second * timings.decode_s
        self.decode_s += timings.decode_s
        self.stats.merge(run.completion.stats)
        if run.completion.cascade is not None:
            self.given_up.merge(run.completion.cascade)

    @property
    def tokens_per_second(self) -> float:
        return self.timed / self.decode_s if self.decode_s > 0 else float("nan")

    @property
    def agreement(self) -> float:
        return self.agreeing / max(1, self.tokens)

    @property
    def score(self) -> float | None:
        return self.right / self.scored if self.scored else None

    def as_dict(self, target: Point) -> dict[str, Any]:
        """Plain data; `speed` is tokens per second over the target's alone."""
        return {
            "method": self.method.name,
            "kind": self.method.kind,
            "alpha": self.method.alpha,
            "prompts": self.prompts,
            "tokens": self.tokens,
            "tokens_per_second": self.tokens_per_second,
            "speed": self.tokens_per_second / target.tokens_per_second,
            "agreement": self.agreement,
            "score": self.score,
            "mean_acceptance_length": self.stats.mean_acceptance_length,
            "mean_total_variation": self.given_up.lost / max(1, self.stats.tokens),
            "not_deferred": self.given_up.not_deferred / max(1, self.stats.tokens),
        }


def methods(rules: Sequence[str], alphas: Sequence[float]) -> list[Method]:
    """The baselines, then every rule (`plain` is always among them) at every strength."""
    baselines = [Method(TARGET), Method(DRAFTER), Method(LOSSLESS)]
    kinds = dict.fromkeys([PLAIN, *rules])
    return [*baselines, *(Method(kind, alpha) for kind in kinds for alpha in alphas)]


def run_sweep(
    writers: Mapping[Method, Writer], asks: Sequence[Ask], judge: Model, max_tokens: int, system: str | None = None
) -> Iterator[Run]:
    """Every prompt under every method, starting with another method each time. judge: the target, for agreement."""
    chosen = list(writers)
    for index, ask in enumerate(asks):
        for method in chosen[index % len(chosen) :] + chosen[: index % len(chosen)]:
            writer = writers[method]
            completion = writer.generate(ask.prompt, system=system, max_tokens=max_tokens, seed=0)
            prompt = writer.encode(ask.prompt, system=system)
            agreeing = agreements(judge, prompt, completion.token_ids)
            yield Run(ask, method, completion, agreeing, has_answer(completion.text, ask.answers))


def tabulate(runs: Sequence[Run]) -> list[Point]:
    """One point per method, in the order of `methods`."""
    points: dict[Method, Point] = {}
    for run in runs:
        points.setdefault(run.method, Point(run.method)).add(run)
    order = {kind: at for at, kind in enumerate((TARGET, DRAFTER, LOSSLESS, PLAIN, *RULES))}
    return sorted(points.values(), key=lambda point: (order[point.method.kind], point.method.alpha or 0.0))


def agreements(model: Model, prompt: Sequence[int], output: Sequence[int]) -> int:
    """How many of the output's tokens the model itself chooses, greedily, after the prompt and the tokens before."""
    info, agreeing = model.info, 0
    kv = model.open()
    try:
        for start in range(0, len(prompt) - 1, _READ):
            with model.forward(
                [ForwardInput(kv, tuple(prompt[start : min(start + _READ, len(prompt) - 1)]), logits=False)]
            ) as read:
                read.commit(0, ())
        last = prompt[-1]
        for start in range(0, len(output), _JUDGED):
            part = tuple(output[start : start + _JUDGED])
            # The last token of a part is judged, and read by the next one.
            with model.forward([ForwardInput(kv, (last,), Draft.chain(part[:-1]))]) as scored:
                chosen = np.argmax(scored.logits(0)[:, : info.usable_vocab], axis=1)
                agreeing += int((chosen == np.array(part)).sum())
                scored.commit(0, tuple(range(len(part) - 1)))
            last = part[-1]
    finally:
        kv.close()
    return agreeing


def has_answer(text: str, answers: Sequence[str]) -> bool | None:
    """Whether one of the answers stands in the text, as words or numbers of their own; None without answers."""
    if not answers:
        return None
    return any(
        re.search(rf"(?<![\w.]){re.escape(answer.strip())}(?!\w|\.\d)", text, re.IGNORECASE) is not None
        for answer in answers
    )
