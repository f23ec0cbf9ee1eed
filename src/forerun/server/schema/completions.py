"""The body of /v1/completions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from forerun.server.schema.asking import Asking

Ids = Annotated[list[int], Field(min_length=1)]


class CompletionRequest(Asking):
    prompt: str | Annotated[list[str] | list[int] | list[Ids], Field(min_length=1)]
    """Text, token ids, or several of either. The strings of control tokens are these tokens."""
    suffix: str | None = None
    """Text that follows what is written, for models with tokens for it (fill in the middle)."""
    echo: bool | None = None
    """Answer with the prompt in front; with `logprobs`, with its log-probabilities too."""
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    """Tell the log-probability of each token, and of so many of the likeliest."""
    best_of: Literal[1] | None = None

    @model_validator(mode="after")
    def _can_be_written(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens is 0, which is of use with echo: true only")
        if self.suffix is not None and self.echo:
            raise ValueError("suffix and echo do not go together; leave one out")
        return self
