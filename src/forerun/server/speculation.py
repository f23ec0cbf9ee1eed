"""What a response says about how it was made: usage, counters, timings, and what speculation was in force."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from forerun.completion import Completion
from forerun.core.stats import Counted, Stats

if TYPE_CHECKING:
    from forerun.assembly import Assembly
    from forerun.server.running import Run, Writing


def usage(run: Run) -> dict[str, Any]:
    """The `usage` block. A prompt counts once, however many choices it has."""
    first = {writing.choice.prompt: writing.answer.completion().usage for writing in reversed(run.choices)}
    completions = run.completions
    written = sum(one.usage.completion_tokens for one in completions)
    read = sum(one.prompt_tokens for one in first.values())
    told = [one.stats.sources.get("prediction", Counted()) for one in completions]
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in first.values())},
        "completion_tokens_details": {
            "reasoning_tokens": sum(writing.choice.reader.reasoning_tokens for writing in run.choices),
            "accepted_prediction_tokens": sum(one.accepted for one in told),
            "rejected_prediction_tokens": sum(one.drafted - one.accepted for one in told),
        },
    }


def metrics(completions: Sequence[Completion]) -> dict[str, Any]:
    """The `metrics` block: the counters of all choices added up."""
    stats = Stats()
    for one in completions:
        stats.merge(one.stats)
    found: dict[str, Any] = {"speculative_decoding": stats.as_dict()}
    cascades = [one.cascade for one in completions if one.cascade is not None]
    return found | ({"cascade": cascades[0] if len(cascades) == 1 else cascades} if cascades else {})


def timings(completions: Sequence[Completion]) -> dict[str, Any]:
    """llama-server's `timings` block: milliseconds. Choices are written side by side, so the longest counts."""
    cached = sum(one.usage.cached_tokens for one in completions)
    read = sum(one.usage.prompt_tokens for one in completions) - cached
    written = sum(one.usage.completion_tokens for one in completions)
    prompt = max(one.timings.ttft_s for one in completions)
    predicted = max(one.timings.decode_s for one in completions)
    return {
        "cache_n": cached,
        "prompt_n": read,
        "prompt_ms": prompt * 1e3,
        "prompt_per_token_ms": prompt * 1e3 / max(1, read),
        "prompt_per_second": read / prompt if prompt else 0.0,
        "predicted_n": written,
        "predicted_ms": predicted * 1e3,
        "predicted_per_token_ms": predicted * 1e3 / max(1, written),
        "predicted_per_second": written / predicted if predicted else 0.0,
        "draft_n": sum(one.stats.drafted for one in completions),
        "draft_n_accepted": sum(one.stats.accepted for one in completions),
    }


def report(assembly: Assembly, run: Run, steps: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """The `speculation` block: what was in force, and why nothing was drafted where nothing was."""
    writing = run.choices[0]
    asked, completion = writing.choice.asked.request.speculation, writing.answer.completion()
    drafted = any(one.stats.drafted for one in run.completions)
    told: dict[str, Any] = {
        "enabled": completion.draft != "none",
        "draft": completion.draft,
        "verifier": completion.verifier,
        "controller": assembly.engine.speculator.controller.name,
        "num_speculative_tokens": asked.num_speculative_tokens,
        "lossy": completion.lossy or None,
        "reason": None if drafted else _why_not(assembly, run),
    }
    return told if steps is None else told | {"steps": steps}


def _why_not(assembly: Assembly, run: Run) -> str:
    """Why nothing was drafted for a request."""
    speculator = assembly.engine.speculator
    asked = run.choices[0].choice.asked.request.speculation
    if not speculator.methods:
        return "this server was started without a draft"
    if not asked.enabled:
        return "the request switched it off"
    if not assembly.engine.target.info.rollback:
        return "the model cannot take tokens back"
    if asked.num_speculative_tokens == 0:
        return "the request allows no drafted tokens"
    if all(one.usage.completion_tokens <= 1 for one in run.completions):
        return "the answer has no second token"
    if failures := speculator.failures():
        return f"the drafter {', '.join(failures)} failed and is not asked any more"
    offered = sum(map(_offered, run.choices))
    if offered:
        return (
            f"the drafters proposed {offered} tokens, but checking them would have cost more than they would bring "
            f"({speculator.controller.name})"
        )
    return "the drafters found nothing to propose in this text"


def _offered(writing: Writing) -> int:
    sequence = writing.answer.sequence
    return 0 if sequence is None else sequence.offered
