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
from typing import Any

import numpy as np

from forerun.assembly import Source, build
from forerun.completion import Completion
from forerun.config import Config
from forerun.core.draft import Draft
from forerun.core.mixtures import RULES
from forerun.core.protocols import ForwardInput, Model
from forerun.core.stats import Stats
from forerun.errors import CompositionError
from forerun.llm import LLM
from forerun.tokenizers.vocabulary import compare

TARGET, DRAFTER, LOSSLESS, PLAIN = "target", "drafter", "lossless", "plain"
# Tokens read in one pass, and tokens judged in one pass (each has a row of logits).
_READ, _JUDGED = 256, 32


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

    def add(self, run: Run) -> None:
        timings = run.completion.timings
        self.prompts += 1
        self.tokens += run.completion.usage.completion_tokens
        self.agreeing += run.agreeing
        self.scored += run.right is not None
        self.right += run.right is True
        # The tokens after the first round, which are what decode_s is the time of.
        self.timed += timings.tokens_per_second * timings.decode_s
        self.decode_s += timings.decode_s
        self.stats.merge(run.completion.stats)

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
            "mean_total_variation": self.stats.given_up / max(1, self.stats.tokens),
            "unasked": self.stats.unasked / max(1, self.stats.tokens),
        }


def methods(rules: Sequence[str], alphas: Sequence[float]) -> list[Method]:
    """The baselines, then every rule (`plain` is always among them) at every strength."""
    baselines = [Method(TARGET), Method(DRAFTER), Method(LOSSLESS)]
    kinds = dict.fromkeys([PLAIN, *rules])
    return [*baselines, *(Method(kind, alpha) for kind in kinds for alpha in alphas)]


def assemble(target: Source, drafter: Source, chosen: Sequence[Method], nodes: int) -> dict[Method, LLM]:
    """One LLM for each method, all on the same two loaded models. nodes: tokens drafted a round.

    Raises CompositionError for models of different vocabularies, UsageError for a wrong rule or strength.
    """
    report = compare(target.tokenizer, drafter.tokenizer)
    if not report.shared:
        raise CompositionError(
            f"{drafter.name} cannot draft for {target.name} in a cascade, which mixes their laws: {report.describe()}."
        )
    draft = f'model:"{drafter.name}"'
    partners = {drafter.name: drafter}

    def made(method: Method) -> LLM:
        if method.kind == DRAFTER:
            alone = build(Config(draft="none", keep_prefixes=0), drafter)
            return LLM(alone.among(target.tokenizer, target.template))
        if method.kind == TARGET:
            return LLM(build(Config(draft="none", keep_prefixes=0), target))
        cascade = None if method.kind == LOSSLESS else f"{method.kind}:{method.alpha!r}"
        config = Config(draft=draft, cascade=cascade, num_speculative_tokens=nodes, keep_prefixes=0)
        return LLM(build(config, target, partners))

    # The rules are built first: a wrong one is said before anything runs.
    return {method: made(method) for method in sorted(chosen, key=lambda method: method.alpha is None)}


def run_sweep(
    llms: Mapping[Method, LLM], asks: Sequence[Ask], judge: Model, max_tokens: int, system: str | None = None
) -> Iterator[Run]:
    """Every prompt under every method, starting with another method each time. judge: the target, for agreement."""
    chosen = list(llms)
    for index, ask in enumerate(asks):
        for method in chosen[index % len(chosen) :] + chosen[: index % len(chosen)]:
            llm = llms[method]
            completion = llm.generate(ask.prompt, system=system, max_tokens=max_tokens, seed=0)
            prompt = llm.encode(ask.prompt, system=system)
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
