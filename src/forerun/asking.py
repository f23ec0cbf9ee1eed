"""From what a caller asks to a request: prompts to tokens, options to sampling parameters, all of it checked."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, cast

from forerun.answer import Asked
from forerun.core.request import Request, Speculation
from forerun.core.sampling import Sampling
from forerun.core.transcript import Constraint
from forerun.errors import PromptError, SamplingError, UsageError, quoted
from forerun.text.chat import prompt_ids
from forerun.text.stream import TextStream

if TYPE_CHECKING:
    from forerun.assembly import Assembly

Message = Mapping[str, Any]
"""A chat message: `{"role": "user", "content": "Hello"}`."""

Prompt = str | Sequence[Message] | Sequence[int]
"""A text, which the chat template makes a question of; a conversation; or token ids, which are read as they are."""


class SamplingOptions(TypedDict, total=False):
    """The fields of `Sampling`, any of which may be said with a prompt; None is the default of each."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    seed: int | None
    max_tokens: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    logprobs: int | None


class AskOptions(SamplingOptions, total=False):
    """What may be said with a prompt, beside the fields of `Sampling`.

    system: a system message in front. raw: feed the text as it is, without the chat template.
    special: the strings of control tokens in the prompt are these tokens.
    trace: note what each step drafted and kept.
    prediction: text that the answer is expected to be like, for the drafter of that name; it changes no answer.
    prompt_logprobs: give the prompt's log-probabilities, with so many alternatives.
    memory: the drafters' memory of earlier requests to read and add to.
    speculation: how this request is drafted for; False decodes plainly.
    constraint: what may follow (see `forerun.structured`); it follows this one text.
    """

    system: str | None
    raw: bool
    special: bool
    trace: bool
    prediction: str | None
    prompt_logprobs: int | None
    memory: str
    speculation: Speculation | bool | None
    constraint: Constraint | None


def asked(
    assembly: Assembly,
    prompt: Prompt,
    *,
    system: str | None = None,
    raw: bool = False,
    special: bool = False,
    trace: bool = False,
    prediction: str | None = None,
    prompt_logprobs: int | None = None,
    memory: str = "",
    speculation: Speculation | bool | None = None,
    constraint: Constraint | None = None,
    **sampling: Any,
) -> Asked:
    """Check a prompt and its options (see `AskOptions`) and make them ready to run. Nothing is computed yet.

    Raises PromptError, SamplingError or UsageError.
    """
    if wrong := sorted(set(sampling) - set(Sampling.names())):
        raise SamplingError(f"unknown parameter {wrong[0]!r}; known: {', '.join(Sampling.names())}.")
    chosen = Sampling(**sampling)
    for name, ids in (("logit_bias", chosen.logit_bias), ("stop_token_ids", chosen.stop_token_ids)):
        _check_ids(assembly, name, ids, SamplingError)
    tokens = encode(assembly, prompt, system=system, raw=raw, special=special)
    ends = frozenset(chosen.stop_token_ids)
    if not chosen.ignore_eos:
        ends |= frozenset(assembly.tokenizer.eos_ids)
    if prediction is not None and not isinstance(prediction, str):
        raise PromptError(f"the prediction is {type(prediction).__name__}; give the text that is expected back.")
    if prediction is not None and not assembly.uses_predictions:
        raise PromptError(
            f"the draft {assembly.draft} ignores `prediction`; add the drafter of that name (such as prediction+suffix), or "
            "leave the prediction out."
        )
    if prompt_logprobs is not None and not (isinstance(prompt_logprobs, int) and 0 <= prompt_logprobs <= 1000):
        raise SamplingError(f"prompt_logprobs is {quoted(prompt_logprobs)}; it must be between 0 and 1000.")
    request = Request(
        tokens,
        chosen,
        seed=secrets.randbits(53) if chosen.seed is None else chosen.seed,
        stop_ids=ends,
        memory=memory,
        prediction=assembly.tokenizer.encode(prediction, add_bos=False) if prediction else (),
        prompt_logprobs=prompt_logprobs,
        speculation=_speculation(speculation),
    )
    assembly.engine.check(request)
    return Asked(request, TextStream(assembly.tokenizer, chosen.stop, ends), trace, constraint)


def encode(
    assembly: Assembly, prompt: Prompt, *, system: str | None = None, raw: bool = False, special: bool = False
) -> list[int]:
    """Token ids of a prompt as the model will read it; see `AskOptions`. Raises PromptError."""
    tokenizer, template = assembly.tokenizer, assembly.template
    if isinstance(prompt, str):
        if raw and system is not None:
            raise PromptError("raw text is read as it is, so there is no place for a system message; leave it out.")
        if raw and not prompt and tokenizer.bos_id is not None:
            return [tokenizer.bos_id]
        if not (prompt if raw else prompt.strip()):
            raise PromptError("the prompt is empty; give some text.")
        if raw or (template is None and system is None):
            return tokenizer.encode(prompt, special=special)
        return encode(assembly, [{"role": "user", "content": prompt}], system=system, special=special)
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
        raise PromptError(f"the prompt is {quoted(prompt)}; give text, chat messages or token ids.")
    if prompt and all(isinstance(token, int) and not isinstance(token, bool) for token in prompt):
        if system is not None:
            raise PromptError(
                "token ids are read as they are, so there is no place for a system message; leave it out."
            )
        ids = cast("Sequence[int]", prompt)
        _check_ids(assembly, "the prompt", ids, PromptError)
        return list(ids)
    if raw:
        raise PromptError("raw takes text or token ids, not chat messages; leave raw out or join them yourself.")
    messages = list(cast("Sequence[Message]", prompt))
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return prompt_ids(tokenizer, messages, template=template, special=special)


def _speculation(asked: Speculation | bool | None) -> Speculation:
    if isinstance(asked, Speculation):
        return asked
    if asked is None or isinstance(asked, bool):
        return Speculation(enabled=asked is not False)
    raise UsageError(f"speculation is {quoted(asked)}; it must be true, false or a Speculation.")


def _check_ids(assembly: Assembly, where: str, ids: Iterable[int], wrong: type[UsageError]) -> None:
    """Raise `wrong` for ids that are no tokens of this model."""
    size = assembly.tokenizer.vocab_size
    for token in ids:
        if not 0 <= token < size:
            raise wrong(f"{where} has the token id {quoted(token)}; {assembly.model} has ids from 0 to {size - 1}.")
