"""What completions answer, for the description."""

from __future__ import annotations

from typing import Any, Literal

from forerun.server.schema.base import Told

Finish = Literal["stop", "length", "tool_calls", "abort"]


class PromptDetails(Told):
    cached_tokens: int
    """Tokens that an earlier request had read already."""


class CompletionDetails(Told):
    reasoning_tokens: int
    accepted_prediction_tokens: int
    """Tokens that were taken over from `prediction`; drafts from elsewhere are not counted."""
    rejected_prediction_tokens: int


class Usage(Told):
    prompt_tokens: int
    completion_tokens: int
    """The one that ended the answer included."""
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class TopLogprob(Told):
    token: str
    logprob: float
    bytes: list[int]


class Logprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Told):
    content: list[Logprob]
    """One for each token of `completion_tokens`."""


class FunctionCall(Told):
    name: str
    arguments: str


class Call(Told):
    id: str
    type: Literal["function"]
    function: FunctionCall


class Answer(Told):
    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None


class ChatChoice(Told):
    index: int
    message: Answer
    logprobs: ChatLogprobs | None
    finish_reason: Finish
    token_ids: list[int] | None = None


class SpeculativeDecoding(Told):
    """Counted as vLLM and llama.cpp do; a speculative step is one that verified a drafted token."""

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    per_position_acceptance_rate: list[float]


class Metrics(Told):
    speculative_decoding: SpeculativeDecoding


class Timings(Told):
    """llama-server's: milliseconds, and tokens."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int
    draft_n_accepted: int


class SpeculationReport(Told):
    """What was in force. reason: why nothing was drafted, where nothing was. lossy: the rule that let the text differ."""

    enabled: bool
    draft: str
    verifier: str
    controller: str
    num_speculative_tokens: int | None
    lossy: str | None
    reason: str | None
    steps: list[dict[str, Any]] | None = None


class Base(Told):
    id: str
    created: int
    model: str
    system_fingerprint: str


class ChatCompletion(Base):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    metrics: Metrics
    timings: Timings
    speculation: SpeculationReport


class TextLogprobs(Told):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class TextChoice(Told):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Finish
    token_ids: list[int] | None = None


class TextCompletion(Base):
    object: Literal["text_completion"]
    choices: list[TextChoice]
    usage: Usage
    metrics: Metrics
    timings: Timings
    speculation: SpeculationReport
