"""Conversations to prompts, by the model's own Jinja template.

The strings of control tokens are tokens where the template writes them. In what users and tools say they stay text: a
message cannot close its own turn. Nothing that was given is lost without a word: roles, tools and variables that a template
has no place for are refused, and so is a conversation of which it leaves a message out.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from forerun.errors import PromptError
from forerun.text.hidden import Hidden, mark_for
from forerun.text.messages import Message, in_known_roles, normalized
from forerun.text.template import Template
from forerun.tokenizers.tokenizer import Tokenizer

# What a template gets from elsewhere; a variable of such a name would take its place.
_TAKEN: Final = frozenset(
    {
        "add_generation_prompt",
        "bos_token",
        "continue_final_message",
        "eos_token",
        "messages",
        "raise_exception",
        "special",
        "strftime_now",
        "tools",
    }
)
_USER: Final = {"role": "user", "content": "hello"}


class ChatTemplate:
    """A model's chat template, compiled when it is first used.

    source: another template than the model's own. Raises PromptError where there is none; every method raises
    ModelFileError where it is not valid Jinja, or takes more time or memory than any honest one.
    """

    def __init__(self, tokenizer: Tokenizer, source: str | None = None) -> None:
        source = tokenizer.chat_template if source is None else source
        if source is None:
            raise PromptError("the model has no chat template (it is a base model): pass plain text")
        self._tokenizer = tokenizer
        self._template = Template(source)
        named = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
        self._tokens = {name: "" if i is None else tokenizer.id_to_token(i) for name, i in named.items()}

    def start(self) -> None:
        """Make it ready while something else is loaded. Does not wait."""
        self._template.start()

    def render(
        self,
        messages: Sequence[Message],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt for a conversation, as text.

        messages: `role` and `content` (text, null, absent, or an array of text parts), `tool_calls` and the like.
        add_generation_prompt: end with the opening of the assistant's turn.
        continue_final_message: end with the text of the last message, the assistant's, as it stands and unclosed, so that
            the answer goes on from it.
        variables: whatever else the template knows (`enable_thinking`, ...).
        Raises PromptError for malformed messages, for what the template has no place for, and for conversations that it
        refuses.
        """
        return self._render(
            self._known(messages), tools, add_generation_prompt, continue_final_message, _checked(variables)
        )

    def encode(
        self,
        messages: Sequence[Message],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        special: bool = False,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> list[int]:
        """Token ids of `render`. BOS is there if the template writes it.

        special: read the strings of control tokens as tokens in users' and tools' messages too.
        """
        clean, checked = self._known(messages), _checked(variables)
        hidden = Hidden(self._tokenizer, clean)
        covered = bool(hidden.found) and not special
        text = self._render(
            hidden.messages if covered else clean, tools, add_generation_prompt, continue_final_message, checked
        )
        if not covered:
            return self._tokenizer.encode(text, special=True, add_bos=False)
        ids: list[int] = []
        for i, run in enumerate(self._tokenizer.split_control(text)):
            ids += self._tokenizer.encode(hidden.shown(run), special=i % 2 == 1, add_bos=False)
        return ids

    def _known(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        return in_known_roles(normalized(messages), self._template.strings)

    def _checked(self, variables: dict[str, Any]) -> dict[str, Any]:
        taken = sorted(_TAKEN & variables.keys())
        if taken:
            raise PromptError(
                f"a template's variable cannot be called {taken[0]}, which is set otherwise: leave it out"
            )
        return variables

    def _render(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        opens_turn: bool,
        continues: bool,
        variables: Mapping[str, Any],
    ) -> str:
        if tools and "tools" not in self._template.names:
            raise PromptError("the model's chat template has no place for tools: leave them out, or use another model")
        mark = mark_for(messages)

        def rendered(some: list[dict[str, Any]]) -> str:
            given = {
                "documents": None,
                "messages": some,
                "tools": list(tools) if tools else None,
                "add_generation_prompt": opens_turn and not continues,
            }
            return self._template.render({**self._tokens, **given, **variables})

        text = _cut_at(mark, rendered(_with_open_end(messages, mark))) if continues else rendered(messages)
        for i in _dropped(messages, text, rendered, mark):
            lost = f"message {i}, of role {messages[i]['role']}, which the model's chat template leaves out"
            if i or messages[0]["role"] != "system" or 0 in _dropped([messages[0], _USER], "", rendered, mark):
                raise PromptError(f"the prompt would lack {lost}: say it in another role or place, or leave it out")
            # Some official templates show it only where the last message is a user's.
            warnings.warn(f"the prompt lacks {lost} in this conversation", RuntimeWarning, stacklevel=2)
        return text


def _checked(variables: Mapping[str, Any]) -> Mapping[str, Any]:
    taken = sorted(_TAKEN & variables.keys())
    if taken:
        raise PromptError(f"a variable for the chat template cannot be called {taken[0]}: leave it out")
    return variables


def _said(message: dict[str, Any]) -> str:
    """What a template must show of a message; of one that calls tools, some show nothing but the calls."""
    return "" if message.get("tool_calls") else str(message["content"]).strip()


def _dropped(
    messages: list[dict[str, Any]], text: str, rendered: Callable[[list[dict[str, Any]]], str], mark: str
) -> list[int]:
    """Which messages the template leaves out for certain.

    What is not in `text` as it was said may have been rewritten (as JSON, without its reasoning); a word in its place,
    in which no template has anything to change but its case, would then still be shown.
    """
    at, missing = 0, []
    for i, message in enumerate(messages):
        said = _said(message)
        # From the end of the one before, where it is as a rule: the whole is then searched once.
        found = text.find(said, at)
        if found >= 0:
            at = found + len(said)
        elif said not in text:
            missing.append(i)
    if not missing:
        return []
    words = {i: f"{mark}x{i}x" for i in missing}
    try:
        again = rendered([m | {"content": words[i]} if i in words else m for i, m in enumerate(messages)])
    except PromptError:
        return []
    again = again.lower()
    return [i for i in missing if words[i] not in again]


def _with_open_end(messages: list[dict[str, Any]], mark: str) -> list[dict[str, Any]]:
    last = messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        raise PromptError(
            "there is no message to continue: the last one must be the assistant's and call no tools, "
            f"but is of role {last['role']}{' and calls some' if last.get('tool_calls') else ''}"
        )
    return [*messages[:-1], last | {"content": last["content"] + mark}]


def _cut_at(mark: str, text: str) -> str:
    if text.count(mark) != 1:
        raise PromptError(
            "the model's chat template does not show the last message just as it is, so it cannot be continued: "
            "leave continue_final_message out"
        )
    return text[: text.index(mark)]


def prompt_ids(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    template: ChatTemplate | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    special: bool = False,
    continue_final_message: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """Token ids of a conversation, up to the opening of the assistant's turn, or to the end of its unfinished message.

    template: the model's own, where it was compiled before. A model without one (a base model) takes a single user
    message as raw text. variables: for the template, such as `enable_thinking`. For the others see `ChatTemplate`. Raises
    PromptError for anything else: there is no right way to guess a format.
    """
    if template is not None or tokenizer.chat_template is not None:
        return (template or ChatTemplate(tokenizer)).encode(
            messages,
            tools=tools,
            special=special,
            continue_final_message=continue_final_message,
            **_checked(variables or {}),
        )
    plain = normalized(messages)
    if len(plain) != 1 or plain[0]["role"] != "user" or tools or continue_final_message:
        raise PromptError(
            "the model has no chat template (it is a base model), so it takes one user message and no system prompt, "
            "history or tools: pass a single prompt, or choose an instruction-tuned model"
        )
    return tokenizer.encode(str(plain[0]["content"]), special=special)
