"""From the body of a completion to what the engine is asked: prompts rendered and encoded, options checked.

Runs on threads of its own: long prompts take long, and the event loop must not wait for them.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forerun.answer import Asked
from forerun.core.request import Speculation
from forerun.server.answers import Reader, form_of
from forerun.server.errors import ApiError
from forerun.server.schema.asking import Asking
from forerun.server.schema.chat import ChatRequest, Conversation, Rendering
from forerun.server.schema.completions import CompletionRequest
from forerun.text.chat import prompt_ids

if TYPE_CHECKING:
    from forerun.assembly import Assembly
    from forerun.llm import LLM

# As OpenAI's and vLLM's servers do.
_TEMPERATURE = 1.0
_SHORT_ANSWER = 16
# Tokens that fill in the middle: before the text in front, before the text behind, before what is written.
_MIDDLE = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
# What a model may end such a text with, beside its end tokens.
_MIDDLE_ENDS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")


@dataclass(frozen=True)
class Choice:
    """One answer to write. prompt: its place among the prompts of the body. echo: text in front of the answer."""

    asked: Asked
    reader: Reader
    prompt: int = 0
    echo: str | None = None


@dataclass(frozen=True)
class Limits:
    """tokens: most of an answer. memory: what the request shares with others (core.request)."""

    tokens: int | None
    memory: str


def chat_choices(llm: LLM, body: ChatRequest, limits: Limits) -> list[Choice]:
    """The choices of a conversation. Raises ApiError, PromptError, SamplingError or UsageError."""
    ids = conversation_ids(llm.assembly, body, messages_of(body))
    options = _options(body, limits, body.most_tokens)
    options["prediction"] = None if body.prediction is None else body.prediction.text
    if body.logprobs:
        options["logprobs"] = body.top_logprobs or 0
    return _choices(llm, body, [ids], options)


def text_choices(llm: LLM, body: CompletionRequest, limits: Limits) -> list[Choice]:
    """The choices of each prompt, in order. Raises ApiError, PromptError, SamplingError or UsageError."""
    short = min(_SHORT_ANSWER, limits.tokens or _SHORT_ANSWER)
    most = short if body.max_tokens is None else max(1, body.max_tokens)
    options = _options(body, limits, most)
    options["logprobs"] = body.logprobs
    if body.echo and body.logprobs is not None:
        options["prompt_logprobs"] = body.logprobs
    if body.suffix is not None:
        options["stop_token_ids"] = [*(body.stop_token_ids or ()), *_known(llm.assembly, _MIDDLE_ENDS).values()]
    prompts = _prompts(body.prompt)
    ids = [_text_ids(llm, prompt, body.suffix) for prompt in prompts]
    echoes = [_text_of(llm.assembly, prompt) for prompt in prompts] if body.echo else None
    return _choices(llm, body, ids, options, echoes)


def conversation_ids(assembly: Assembly, body: Rendering, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Token ids of a conversation. Raises PromptError."""
    if assembly.template is None:
        if body.continue_final_message or body.chat_template_kwargs:
            raise ApiError(400, f"{assembly.model} has no chat template (it is a base model); use /v1/completions.")
        return prompt_ids(assembly.tokenizer, messages, tools=_tools(body))
    return assembly.template.encode(messages, **rendering(body))


def rendering(body: Rendering) -> dict[str, Any]:
    """How a chat template is to render: tools, the end of the prompt, variables."""
    opens = not body.continue_final_message if body.add_generation_prompt is None else body.add_generation_prompt
    return {
        "tools": _tools(body),
        "add_generation_prompt": opens,
        "continue_final_message": bool(body.continue_final_message),
        **(body.chat_template_kwargs or {}),
    }


def _tools(body: Rendering) -> list[dict[str, Any]] | None:
    """The tools that the model is told of; none where it must not call any."""
    if not body.tools or (isinstance(body, ChatRequest) and body.tool_choice == "none"):
        return None
    return [tool.plain() for tool in body.tools]


def messages_of(body: Conversation) -> list[dict[str, Any]]:
    """The messages as a chat template reads them."""
    return [message.plain() for message in body.messages]


def _choices(
    llm: LLM, body: Asking, prompts: Sequence[list[int]], options: dict[str, Any], echoes: Sequence[str] | None = None
) -> list[Choice]:
    first = secrets.randbits(48) if body.seed is None else body.seed
    made = []
    for which, ids in enumerate(prompts):
        form = form_of(body, llm.assembly, ids)
        for index in range(body.n or 1):
            asked = llm.ask(ids, **options, seed=first + index, constraint=form.constraint())
            made.append(Choice(asked, form.reader(), which, None if echoes is None else echoes[which]))
    return made


def _options(body: Asking, limits: Limits, most: int | None) -> dict[str, Any]:
    """The options of `LLM.ask` that both kinds of completions have."""
    if most is not None and most < 1:
        raise ApiError(400, f"max_tokens is {most}; it must be at least 1.", param="max_tokens")
    if most is not None and limits.tokens is not None and most > limits.tokens:
        raise ApiError(
            400, f"{most} tokens are asked for; this server writes at most {limits.tokens}.", param="max_tokens"
        )
    options = {
        "temperature": _TEMPERATURE if body.temperature is None else body.temperature,
        "top_k": 0 if body.top_k == -1 else body.top_k,
        "top_p": body.top_p,
        "min_p": body.min_p,
        "repetition_penalty": body.repetition_penalty,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "logit_bias": _biases(body.logit_bias),
        "stop": body.stop,
        "stop_token_ids": body.stop_token_ids,
        "ignore_eos": body.ignore_eos,
        "memory": limits.memory,
        "trace": bool(body.speculation and body.speculation.trace),
        "speculation": _speculation(body),
    }
    options = {name: value for name, value in options.items() if value is not None}
    return options | {"max_tokens": limits.tokens if most is None else most}


def _speculation(body: Asking) -> Speculation:
    asked = body.speculation
    if asked is None:
        return Speculation()
    off = asked.enabled is False or asked.draft == "none"
    draft = None if asked.draft == "none" else asked.draft
    return Speculation(not off, draft, asked.verifier, asked.num_speculative_tokens)


def _biases(given: Mapping[str, float] | None) -> dict[int, float] | None:
    if given is None:
        return None
    biases = {}
    for token, bias in given.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise ApiError(400, f"logit_bias has the key {token[:40]!r}; keys are token ids.", param="logit_bias")
        biases[int(token)] = bias
    return biases


def _prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], int):
        return [[token for token in prompt if isinstance(token, int)]]
    return [one for one in prompt if not isinstance(one, int)]


def _text_ids(llm: LLM, prompt: str | list[int], suffix: str | None) -> list[int]:
    if suffix is None:
        return llm.encode(prompt, raw=True, special=True)
    known = _known(llm.assembly, _MIDDLE)
    if len(known) < len(_MIDDLE):
        raise ApiError(
            400,
            f"suffix is not supported: {llm.assembly.model} has no tokens to fill in the middle; leave it out.",
            param="suffix",
        )
    before, after, middle = (known[name] for name in _MIDDLE)
    encode = llm.assembly.tokenizer.encode
    front = encode(prompt, add_bos=False) if isinstance(prompt, str) else prompt
    return [before, *front, after, *encode(suffix, add_bos=False), middle]


def _known(assembly: Assembly, strings: Sequence[str]) -> dict[str, int]:
    """The ids of those control tokens that the model has."""
    tokenizer = assembly.tokenizer
    by_string = {tokenizer.id_to_token(token): token for token in tokenizer.control_ids}
    return {string: by_string[string] for string in strings if string in by_string}


def _text_of(assembly: Assembly, prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else assembly.tokenizer.decode(prompt)
