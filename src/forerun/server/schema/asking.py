"""The fields that chat and text completions share: how tokens are chosen, when it ends, how it is drafted for."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from forerun.server.schema.base import Strict


class StreamOptions(Strict):
    include_usage: bool | None = None
    """Send a last chunk with `usage`, `metrics`, `timings` and `speculation`."""


class Speculation(Strict):
    """How this request is drafted for, among what the server was started with (`/health` lists it)."""

    enabled: bool | None = None
    """False decodes plainly."""
    draft: str | None = None
    """One of the server's drafts."""
    num_speculative_tokens: Annotated[int, Field(ge=0, le=1024)] | None = None
    """Most tokens drafted in a step; the controller decides how many of them."""
    verifier: str | None = None
    """The acceptance rule. `keyed` gives the same text per seed; the other exact ones keep the distribution only."""
    trace: bool | None = None
    """Tell what each step drafted and kept."""


class Text(Strict):
    type: Literal["text"]


class JsonObject(Strict):
    type: Literal["json_object"]


class JsonSchema(Strict):
    name: str
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None
    """Schemas are always kept to the letter, as with `strict`."""


class JsonSchemaFormat(Strict):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[Text | JsonObject | JsonSchemaFormat, Field(discriminator="type")]


class Asking(Strict):
    """The shared fields. Null is the default of any of them."""

    model: str | None = None
    """The name of the model, or one of its other names; `/v1/models` lists them."""
    temperature: float | None = None
    """0 is greedy. Default 1."""
    top_p: float | None = None
    """The smallest set of likely tokens with this mass. Default 1."""
    top_k: int | None = None
    """The k likeliest tokens; 0 or -1 is off, the default."""
    min_p: float | None = None
    """Tokens of at least this share of the likeliest one's probability. Default 0."""
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    """Over prompt and answer; 1 is off, the default."""
    logit_bias: dict[str, float] | None = None
    """By token id, added to its logit."""
    seed: int | None = None
    """The same seed gives the same text. Choice i of several has seed + i."""
    stop: str | list[str] | None = None
    """Texts that end the answer and are cut from it."""
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    """Do not end at the model's end token."""
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    """How many answers. The prompt is read once."""
    max_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    """Tell the ids of prompt and answer (`prompt_token_ids`, `token_ids`)."""
    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | bool | None = None
    """A JSON schema that the answer keeps to."""
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    """A grammar, in the Lark form that llguidance reads, or llama.cpp's GBNF."""
    speculation: Speculation | None = None
    user: str | None = None
    """Accepted, and of no effect: it identifies a caller to whom no answer depends."""
    metadata: dict[str, str] | None = None
    """Accepted, and of no effect: it labels stored answers, and nothing is stored."""

    @model_validator(mode="after")
    def _fits_together(self) -> Asking:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options goes with stream: true only; leave it out")
        guides = ("response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
        given = [name for name in guides if getattr(self, name) is not None]
        given = [name for name in given if name != "response_format" or not isinstance(self.response_format, Text)]
        if len(given) > 1:
            raise ValueError(f"{given[0]} and {given[1]} both say what the answer must be like; leave one out")
        return self
