"""One line about one answer: how much, how fast, and what speculation did for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forerun.completion import Completion
from forerun.core.stats import Stats


def summarize(completion: Completion, max_tokens: int | None) -> str:
    """Tokens, speed, steps and acceptance of one answer, and why it ended where that was not the model's own choice.

    max_tokens: how many were asked for at most.
    """
    usage, timings = completion.usage, completion.timings
    # What an earlier turn left in memory was not read again, so the speed is that of the rest.
    read = round(timings.prompt_tokens_per_second * timings.ttft_s)
    new = f", {read:,} of them new" if read < usage.prompt_tokens else ""
    line = (
        f"{count(usage.completion_tokens, 'token')}, {timings.tokens_per_second:.1f} tokens/s "
        f"(prompt: {count(usage.prompt_tokens, 'token')}{new}, {timings.prompt_tokens_per_second:.1f} tokens/s), "
    )
    line += speculation(completion.stats, completion.draft)
    if completion.cascade is not None:
        line += f"; {given_up(completion.cascade)}"
    if completion.finish_reason == "length":
        own = max_tokens is not None and usage.completion_tokens >= max_tokens
        return f"{line}; {'cut at the length limit (--max-tokens)' if own else 'cut where the context is full'}"
    return f"{line}; interrupted" if completion.finish_reason == "abort" else line


def speculation(stats: Stats, draft: str) -> str:
    """Steps, and the mean acceptance length where something was drafted."""
    steps = count(stats.steps, "step")
    if draft == "none":
        return f"{steps}, nothing drafted (--draft none)"
    if not stats.spec_steps:
        return f"{steps}, nothing drafted by {draft}"
    return f"{steps}, mean acceptance length {stats.mean_acceptance_length:.2f} with {draft}"


def given_up(told: Mapping[str, Any]) -> str:
    """What a lossy rule cost, by `Completion.cascade`: how many tokens are not the target's own, and how far the
    distributions were apart."""
    rule, tokens, mean = told["rule"], count(told["num_tokens"], "token"), told["mean_total_variation"]
    if mean is None:
        return f"{rule}: {told['num_not_deferred']} of {tokens} without asking the model"
    return f"{rule}: {told['num_overrides']} of {tokens} not the model's own, TV {mean:.3f} a token"


def count(number: int, thing: str) -> str:
    """`1 token`, `2,000 tokens`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"
