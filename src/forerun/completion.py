"""Results: what was written, why it ended, where the time went and what speculation did. The JSON has the same fields."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from forerun.core.choosing import TokenLogprob
from forerun.core.request import FinishReason
from forerun.core.stats import Stats


@dataclass(frozen=True)
class Usage:
    """Token counts. Completion tokens include the one that ended the text.

    cached_tokens: those of the prompt that were not read again, since an earlier text began with them.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True)
class Timings:
    """Seconds. draft, verify and other are the parts of the steps; a pass shared by several requests counts in each.

    ttft_s: from asking to the first token. decode_s: from the first step's tokens to the last's.
    tokens_per_second: of the tokens after the first step (of all, when there was only one).
    prompt_tokens_per_second: prompt tokens that were read (not those kept from an earlier turn) over ttft_s.
    """

    load_s: float = 0.0
    ttft_s: float = 0.0
    decode_s: float = 0.0
    tokens_per_second: float = 0.0
    prompt_tokens_per_second: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    other_s: float = 0.0


@dataclass(frozen=True)
class Completion:
    """One answer. `steps` is filled when a trace was asked for, `logprobs` and `prompt_logprobs` when they were.

    prompt_logprobs: of the prompt's tokens from the second on.
    lossy: the rule that let the text differ from the target's own (`v3:0.5`, `typical`); empty where it is lossless.
    cascade: what that rule gave up (cascade.verdict.LossyStats), None where it is lossless.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    usage: Usage
    model: str
    draft: str
    verifier: str
    backend: str
    seed: int
    timings: Timings = Timings()
    stats: Stats = field(default_factory=Stats)
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    steps: list[dict[str, Any]] | None = None
    error: str | None = None
    lossy: str = ""
    cascade: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as `forerun generate --json` prints it; fields that were not asked for are left out.

        `lossy` is false, or the name of the rule that let the text differ.
        """
        data: dict[str, Any] = {
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "usage": asdict(self.usage),
            "model": self.model,
            "draft": self.draft,
            "verifier": self.verifier,
            "lossy": self.lossy or False,
            "backend": self.backend,
            "seed": self.seed,
            "timings": asdict(self.timings),
            "metrics": {"speculative_decoding": self.stats.as_dict()},
        }
        if self.cascade is not None:
            data["metrics"]["cascade"] = self.cascade
        if self.logprobs is not None:
            data["logprobs"] = [_logprob(entry) for entry in self.logprobs]
        if self.prompt_logprobs is not None:
            data["prompt_logprobs"] = [_logprob(entry) for entry in self.prompt_logprobs]
        if self.steps is not None:
            data["steps"] = self.steps
        if self.error is not None:
            data["error"] = self.error
        return data


def _logprob(entry: TokenLogprob) -> dict[str, Any]:
    top = [{"token_id": token, "logprob": value} for token, value in entry.top]
    return {"token_id": entry.token_id, "logprob": entry.logprob, "top": top}


@dataclass(frozen=True)
class Chunk:
    """What one step added to a streamed text.

    text: what can be shown now; text that may still turn out to begin a stop string is held back.
    token_ids and accepted: the step's tokens, and for each whether it was drafted and accepted.
    pieces: for each token, the text that it released; together they are `text`.
    logprobs: of the tokens, where they were asked for.
    drafted: how many drafted tokens the step verified. step: the whole of it (StepResult.trace), where a trace was asked for.
    finish_reason: of the answer's last chunk; None before.
    prompt_tokens and prompt_tokens_read: the prompt's length, and how much of it has been read so far. Steps that only
        read the prompt give chunks without tokens. What an earlier turn left in memory is not read again.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    accepted: tuple[bool, ...] = ()
    pieces: tuple[str, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    drafted: int = 0
    step: dict[str, Any] | None = None
    finish_reason: FinishReason | None = None
    prompt_tokens: int = 0
    prompt_tokens_read: int = 0
