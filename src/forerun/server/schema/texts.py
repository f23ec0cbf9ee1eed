"""The bodies of /tokenize, /detokenize and /apply-template, and what they answer."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from forerun.server.schema.base import Strict, Told
from forerun.server.schema.chat import Conversation, Message, Rendering


class TokenizeRequest(Rendering):
    model: str | None = None
    prompt: str | None = None
    """Text; `content` is llama-server's name for it."""
    content: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    """A conversation, in the place of text."""
    add_special_tokens: bool | None = None
    """Put the begin-of-text token in front of text, where the model has one. Default true."""
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _has_one_text(self) -> TokenizeRequest:
        given = [name for name in ("prompt", "content", "messages") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("give one of prompt, content and messages")
        return self

    @property
    def text(self) -> str:
        return self.prompt if self.prompt is not None else self.content or ""


class DetokenizeRequest(Strict):
    model: str | None = None
    tokens: list[int]


class TemplateRequest(Conversation):
    model: str | None = None


class Tokens(Told):
    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None = None


class DetokenizedText(Told):
    prompt: str
    content: str
    """The same, under llama-server's name."""


class Prompt(Told):
    prompt: str
