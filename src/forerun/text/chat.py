"""Conversations to prompts, by the model's own Jinja template in a sandbox.

Templates come from model files and are not trusted: they run in Jinja's immutable sandbox, without loaders. What they
may rely on is what transformers offers them: trim_blocks and lstrip_blocks, loop controls, `raise_exception`,
`strftime_now`, `tojson` with arguments, the `generation` block.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from forerun.errors import ModelFileError, PromptError
from forerun.weights.tokenizer import Tokenizer

Message = Mapping[str, Any]
LARGEST_PRODUCT: Final = 1_000_000
_TEXT_PARTS = ("text", "input_text", "output_text")


class ChatTemplate:
    """A model's chat template, compiled.

    source: another template than the model's own. Raises ModelFileError where it is not valid Jinja, PromptError where
    there is none.
    """

    def __init__(self, tokenizer: Tokenizer, source: str | None = None) -> None:
        source = tokenizer.chat_template if source is None else source
        if source is None:
            raise PromptError("the model has no chat template (it is a base model): pass plain text")
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationBlock]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
        named = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
        self._tokens = {name: "" if i is None else tokenizer.id_to_token(i) for name, i in named.items()}
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ModelFileError(
                f"the model's chat template is not valid ({error}): use --raw, or another model"
            ) from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt for a conversation.

        messages: `role` and `content` (text, null, absent, or an array of text parts), `tool_calls` and the like.
        add_generation_prompt: end with the opening of the assistant's turn.
        variables: whatever else the template knows (`enable_thinking`, ...).
        Raises PromptError for malformed messages and for conversations that the template refuses.
        """
        values = self._tokens | {"documents": None} | variables
        try:
            return self._template.render(
                messages=normalised(messages),
                tools=list(tools) if tools else None,
                add_generation_prompt=add_generation_prompt,
                **values,
            )
        except _RefusedError as error:
            raise PromptError(f"the model's chat template refuses this conversation: {error}") from error
        except SecurityError as error:
            raise ModelFileError(
                f"the model's chat template does what a template must not ({error}): use --raw"
            ) from error
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise PromptError(
                f"the model's chat template cannot render this conversation ({error}): use --raw"
            ) from error


def prompt_ids(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **variables: Any,
) -> list[int]:
    """Token ids of a conversation, up to the opening of the assistant's turn.

    With a template, its control tokens are tokens and BOS is what it writes. A model without one (a base model) takes a
    single user message as raw text. Raises PromptError for anything else: there is no right way to guess a format.
    """
    if tokenizer.chat_template is not None:
        template = ChatTemplate(tokenizer)
        return tokenizer.encode(template.render(messages, tools=tools, **variables), special=True, add_bos=False)
    plain = normalised(messages)
    if len(plain) != 1 or plain[0]["role"] != "user" or tools:
        raise PromptError(
            "the model has no chat template (it is a base model), so it takes one user message and no system prompt, "
            "history or tools: pass a single prompt, or choose an instruction-tuned model"
        )
    return tokenizer.encode(str(plain[0]["content"]))


def normalised(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as every template can read them: content is a string, tool-call arguments are objects.

    Raises PromptError that names the message.
    """
    if not messages:
        raise PromptError("the conversation is empty: pass at least one message")
    return [_message(message, index) for index, message in enumerate(messages)]


def _message(message: Any, index: int) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise PromptError(f"message {index} has no role: each message is an object with `role` and `content`")
    clean = dict(message) | {"content": _content(message.get("content"), index)}
    calls = message.get("tool_calls")
    if calls is None:
        clean.pop("tool_calls", None)
    elif isinstance(calls, Sequence) and all(isinstance(call, Mapping) for call in calls):
        clean["tool_calls"] = [_tool_call(call) for call in calls]
    else:
        raise PromptError(f"message {index} has tool_calls that are not a list of objects")
    return clean


def _content(content: Any, index: int) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise PromptError(f"message {index} has content that is neither text nor an array of parts")
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, Mapping) and part.get("type", "text") in _TEXT_PARTS else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise PromptError(f"message {index} has a part of type {kind!r}: only text parts can be read")
        texts.append(text)
    return "\n".join(texts)


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call whose arguments are an object: clients send JSON in a string, templates write JSON of an object."""
    clean = dict(call)
    if isinstance(call.get("function"), Mapping):
        clean["function"] = _tool_call(call["function"])
    if isinstance(call.get("arguments"), str):
        try:
            parsed = json.loads(call["arguments"])
        except (ValueError, RecursionError):
            parsed = None
        if isinstance(parsed, dict):
            clean["arguments"] = parsed
    return clean


class _RefusedError(jinja2.TemplateError):
    """A template called `raise_exception`."""


def _refuse(message: object) -> None:
    raise _RefusedError(str(message))


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it: unlike Jinja's own filter, nothing is escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with products that could fill the memory refused as well."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(side) if isinstance(side, str | list | tuple) else side for side in (left, right)]
        if any(isinstance(size, int) and abs(size) > LARGEST_PRODUCT for size in sizes) or (
            operator == "**" and any(isinstance(size, int) and abs(size) > 64 for size in sizes)
        ):
            raise SecurityError("a product too large")
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, str | list | tuple) and len(result) > LARGEST_PRODUCT:
            raise SecurityError("a product too large")
        return result


class _GenerationBlock(Extension):
    """`{% generation %}`, by which templates mark the assistant's words for training; here it only holds them."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))
