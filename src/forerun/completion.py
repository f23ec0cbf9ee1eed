"""Results: what was written, why it ended, where the time went and what speculation did. The JSON has the same fields."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from forerun.core.request import FinishReason
from forerun.core.sampling import TokenLogprob
from forerun.core.stats import Stats


@dataclass(frozen=True)
class Usage:
    """Token counts. Completion tokens include the one that ended the text."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Timings:
    """Seconds. draft, verify and other are the parts of the rounds; a pass shared by several requests counts in each.

    ttft_s: from asking to the first token. decode_s: from the first round's tokens to the last's.
    tokens_per_second: of the tokens after the first round (of all, when there was only one).
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
    """One answer. `rounds` is filled when a trace was asked for, `logprobs` when they were.

    lossy: the rule that let the text differ from the target's own (`v3:0.5`, `typical`); empty where it is lossless.
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
    rounds: list[dict[str, Any]] | None = None
    error: str | None = None
    lossy: str = ""

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
        if self.lossy:
            data["metrics"]["cascade"] = self.stats.cascade(self.lossy)
        if self.logprobs is not None:
            data["logprobs"] = [
                {
                    "token_id": entry.token_id,
                    "logprob": entry.logprob,
                    "top": [{"token_id": token, "logprob": value} for token, value in entry.top],
                }
                for entry in self.logprobs
            ]
        if self.rounds is not None:
            data["rounds"] = self.rounds
        if self.error is not None:
            data["error"] = self.error
        return data


@dataclass(frozen=True)
class Chunk:
    """What one round added to a streamed text.

    text: what can be shown now; text that may still turn out to begin a stop string is held back.
    token_ids and accepted: the round's tokens, and for each whether it was drafted and accepted.
    pieces: for each token, the text that it released; together they are `text`.
    prompt_tokens and prompt_tokens_read: the prompt's length, and how much of it has been read so far. Rounds that only
        read the prompt give chunks without tokens. What an earlier turn left in memory is not read again.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    accepted: tuple[bool, ...] = ()
    pieces: tuple[str, ...] = ()
    prompt_tokens: int = 0
    prompt_tokens_read: int = 0
