"""The body of /v1/chat/completions, and of what else takes a conversation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from forerun.server.schema.asking import Asking
from forerun.server.schema.base import Strict


class Part(Strict):
    """A part of a message. Text is all that can be read."""

    type: Literal["text", "input_text", "output_text"]
    text: str


class CalledFunction(Strict):
    name: str
    arguments: str | dict[str, Any]


class ToolCall(Strict):
    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = None
    function: CalledFunction


class Message(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    """Of an earlier answer; the chat template decides whether it is read again."""
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None

    def plain(self) -> dict[str, Any]:
        """The message as a chat template reads it: what was given, without what is null or stands for nothing."""
        empty = ("refusal", "audio", "function_call", "annotations")
        return self.model_dump(exclude_unset=True, exclude=set(empty), exclude_none=True) | {"role": self.role}


class Function(Strict):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    """Arguments of a call that is required always keep to the schema."""


class Tool(Strict):
    type: Literal["function"]
    function: Function

    def plain(self) -> dict[str, Any]:
        """The tool as a chat template reads it."""
        return self.model_dump(exclude_unset=True, exclude_none=True)


class NamedFunction(Strict):
    name: str


class NamedTool(Strict):
    type: Literal["function"]
    function: NamedFunction


class Prediction(Strict):
    """Text that the answer is expected to be like. It changes how fast an answer comes, and never the answer."""

    type: Literal["content"]
    content: str | list[Part]

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class Reasoning(Strict):
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    """Most tokens between the reasoning tags, exactly; then the end tag follows."""


class Rendering(Strict):
    """How a conversation is rendered by the model's chat template."""

    tools: list[Tool] | None = None
    add_generation_prompt: bool | None = None
    """Open the assistant's turn at the end. Default true."""
    continue_final_message: bool | None = None
    """Go on with the last message, which is the assistant's (with add_generation_prompt: false)."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables of the template, such as enable_thinking."""

    @model_validator(mode="after")
    def _has_one_end(self) -> Rendering:
        if self.continue_final_message and self.add_generation_prompt:
            raise ValueError(
                "continue_final_message goes on with the last message, so no turn can be opened after it; say "
                "add_generation_prompt: false"
            )
        return self


class Conversation(Rendering):
    messages: Annotated[list[Message], Field(min_length=1)]


class ChatRequest(Asking, Conversation):
    max_completion_tokens: int | None = None
    """Most tokens of the answer, reasoning included; `max_tokens` is its old name. Default: what the context holds."""
    logprobs: bool | None = None
    """Tell the log-probability of each token."""
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    """False allows one call an answer."""
    prediction: Prediction | None = None
    reasoning: Reasoning | None = None
    thinking_budget: Annotated[int, Field(ge=0)] | None = None
    """The same as reasoning.max_tokens."""
    modalities: list[Literal["text"]] | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: Literal[False] | None = None
    """Nothing is stored; true is refused."""
    safety_identifier: str | None = None
    """Accepted, and of no effect."""
    prompt_cache_key: str | None = None
    """Accepted, and of no effect: prompts are found again by their tokens."""

    @model_validator(mode="after")
    def _says_it_once(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs goes with logprobs: true only; leave it out")
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise ValueError("max_tokens and max_completion_tokens differ; leave one out")
        if self.thinking_budget is not None and self.reasoning is not None:
            raise ValueError("reasoning and thinking_budget say the same; leave one out")
        known = [tool.function.name for tool in self.tools or ()]
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in known:
            raise ValueError(f"tool_choice names {self.tool_choice.function.name!r}, which is none of the tools")
        if self.tool_choice == "required" and not known:
            raise ValueError("tool_choice is required, but there are no tools")
        if len(set(known)) < len(known):
            raise ValueError("two tools have the same name")
        return self

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def thinking(self) -> int | None:
        """Most tokens of reasoning; None is no limit."""
        return self.thinking_budget if self.reasoning is None else self.reasoning.max_tokens
