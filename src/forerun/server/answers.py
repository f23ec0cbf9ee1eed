"""What an answer is made of: text, reasoning and calls of tools, told apart token by token; and what it is bound to be like.

This is where the parsers of `text` and the constraints of `structured` meet the bodies of requests.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from forerun.core.transcript import Constraint
from forerun.errors import UsageError
from forerun.server.errors import ApiError
from forerun.server.schema.asking import Asking, JsonObject, JsonSchemaFormat
from forerun.server.schema.chat import ChatRequest, NamedTool
from forerun.text.reasoning import THINK, ReasoningParser
from forerun.text.tool_calls import parser_for, syntax_of
from forerun.text.tools import CallStart, Content, Syntax, Tool, ToolCallParser, tools_of
from forerun.text.tools import Event as ToolEvent

if TYPE_CHECKING:
    from forerun.assembly import Assembly
    from forerun.structured import Grammar

# Tokens at the end of a prompt among which an opening tag is looked for.
_END = 16


@dataclass(frozen=True)
class Delta:
    """What became visible of an answer.

    kind: `content` and `reasoning` are text; `call` begins a call of the tool `name`, `arguments` goes on with one.
    call: which call of the answer it is, from 0. id: of a call that begins.
    """

    kind: Literal["content", "reasoning", "call", "arguments"]
    text: str = ""
    call: int = 0
    id: str = ""
    name: str = ""


class Reader:
    """Takes one answer apart, token by token. A call that breaks off stays as far as it came."""

    def __init__(self, thinking: ReasoningParser | None = None, calls: ToolCallParser | None = None) -> None:
        self._thinking, self._parser = thinking, calls
        self.calls = 0

    @property
    def reasoning_tokens(self) -> int:
        """Tokens so far between the reasoning tags."""
        return 0 if self._thinking is None else self._thinking.reasoning_tokens

    def push(self, token: int, text: str) -> list[Delta]:
        """What one more token shows, and the text that came with it."""
        if self._thinking is None:
            return self._said(text)
        split = self._thinking.push(token, text)
        return [*_reasoned(split.reasoning), *self._said(split.content)]

    def finish(self, text: str) -> list[Delta]:
        """The last text, that no token came with, and whatever was held back."""
        deltas = []
        if self._thinking is not None:
            split = self._thinking.finish(text)
            deltas, text = _reasoned(split.reasoning), split.content
        deltas += self._said(text)
        return deltas + ([] if self._parser is None else self._told(self._parser.finish()))

    def _said(self, text: str) -> list[Delta]:
        if self._parser is None:
            return [Delta("content", text)] if text else []
        return self._told(self._parser.push(text)) if text else []

    def _told(self, events: Sequence[ToolEvent]) -> list[Delta]:
        deltas = []
        for event in events:
            if isinstance(event, Content):
                deltas.append(Delta("content", event.text))
            elif isinstance(event, CallStart):
                self.calls += 1
                deltas.append(Delta("call", call=event.index, id=event.id, name=event.name))
            elif not hasattr(event, "raw"):
                deltas.append(Delta("arguments", event.text, call=event.index))
        return deltas


@dataclass(frozen=True)
class Form:
    """What answers to one body are like: which parsers read them, and what they are bound to.

    asked_by: the field of the body that the grammar follows from.
    """

    assembly: Assembly
    grammar: Grammar | None = None
    tools: tuple[Tool, ...] = ()
    syntax: Syntax | None = None
    thinks: bool = False
    starts_inside: bool = False
    budget: int | None = None
    stop_ids: tuple[int, ...] = ()
    asked_by: str | None = None

    def reader(self) -> Reader:
        """What takes one answer apart."""
        tokenizer = self.assembly.tokenizer
        thinking = ReasoningParser(tokenizer, starts_inside=self.starts_inside) if self.thinks else None
        calls = None if self.syntax is None else parser_for(self.syntax, self.tools, uuid.uuid4().hex)
        return Reader(thinking, calls)

    def constraint(self) -> Constraint | None:
        """What one answer is bound to; None where it is free. Raises ApiError for what cannot be kept to."""
        if self.grammar is None and self.budget is None:
            return None
        try:
            return self._bound()
        except UsageError as error:
            raise ApiError(400, str(error), param=self.asked_by) from error

    def _bound(self) -> Constraint:
        from forerun.structured import AfterThinking, GrammarConstraint, TokenBudget, all_of

        tokenizer, bounds = self.assembly.tokenizer, list[Constraint]()
        if self.budget is not None:
            bounds.append(TokenBudget(tokenizer, self.budget, starts_inside=self.starts_inside))
        if self.grammar is not None:
            bound: Constraint = GrammarConstraint(tokenizer, self.grammar, stop_ids=self.stop_ids)
            if self.thinks:
                inside = self.starts_inside
                bound = AfterThinking(tokenizer, bound, stop_ids=self.stop_ids, starts_inside=inside)
            bounds.append(bound)
        return all_of(bounds)


def form_of(body: Asking, assembly: Assembly, prompt: Sequence[int]) -> Form:
    """What answers to a body are like. Raises ApiError for what cannot be, PromptError for tools that are malformed."""
    asked_by, grammar = _grammar(body)
    stops = tuple(body.stop_token_ids or ())
    if not isinstance(body, ChatRequest):
        return Form(assembly, grammar, stop_ids=stops, asked_by=asked_by)
    known = assembly.tokenizer.chat_template or ""
    tags = THINK.open in known or THINK.close in known
    inside = assembly.tokenizer.decode(prompt[-_END:], skip_special=False).rstrip().endswith(THINK.open)
    tools: tuple[Tool, ...] = ()
    syntax: Syntax | None = None
    if body.tools and body.tool_choice != "none":
        if grammar is not None:
            raise ApiError(400, "tools and an answer of a given form do not go together; leave one out.", param="tools")
        syntax = syntax_of(known)
        if syntax is None:
            raise ApiError(400, f"{assembly.model} has no known way to call tools; leave them out.", param="tools")
        tools = tools_of([tool.plain() for tool in body.tools])
        asked_by, grammar = "tools", _calls(body, assembly, tools, syntax)
    thinks = tags or inside or body.thinking is not None
    return Form(assembly, grammar, tools, syntax, thinks, inside, body.thinking, stops, asked_by or "reasoning")


def _calls(body: ChatRequest, assembly: Assembly, tools: Sequence[Tool], syntax: Syntax) -> Grammar:
    """What an answer with these tools may be."""
    from forerun.structured import tool_grammar

    named = body.tool_choice.function.name if isinstance(body.tool_choice, NamedTool) else None
    choice: Literal["auto", "required"] = "required" if body.tool_choice == "required" else "auto"
    parallel = body.parallel_tool_calls is not False and named is None
    return tool_grammar(assembly.tokenizer, tools, syntax, choice=choice, name=named, parallel=parallel)


def _grammar(body: Asking) -> tuple[str | None, Grammar | None]:
    """The form that a body asks for by itself, and the field that does so."""
    wanted = body.response_format
    named = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
    name = next((name for name in named if getattr(body, name) is not None), None)
    if isinstance(wanted, JsonObject | JsonSchemaFormat):
        name = "response_format"
    if name is None:
        return None, None
    from forerun.structured import choice, grammar, json_object, json_schema, regex

    try:
        if isinstance(wanted, JsonObject):
            return name, json_object()
        if isinstance(wanted, JsonSchemaFormat):
            return name, json_schema(wanted.json_schema.schema_)
        makers = dict(zip(named, (json_schema, regex, choice, grammar), strict=True))
        return name, makers[name](getattr(body, name))
    except UsageError as error:
        raise ApiError(400, str(error), param=name) from error


def _reasoned(text: str) -> list[Delta]:
    return [Delta("reasoning", text)] if text else []
