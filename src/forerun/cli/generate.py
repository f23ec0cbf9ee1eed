"""`forerun generate`: one answer, or one for each line of a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forerun.cli import options
from forerun.cli.files import apart
from forerun.cli.guard import INTERRUPTED
from forerun.cli.output import Output, note
from forerun.errors import BackendError, PromptError, UsageError

if TYPE_CHECKING:
    from forerun.llm import LLM


def generate(
    command: typer.Context,
    prompt: Annotated[str | None, typer.Argument(help="The prompt; - reads it from standard input.")] = None,
    model: options.Model = None,
    draft: options.Draft = "auto",
    max_tokens: options.MaxTokens = 256,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    presence_penalty: options.PresencePenalty = 0.0,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    logit_bias: options.LogitBias = None,
    logprobs: options.Logprobs = None,
    stop: options.Stop = None,
    stop_token_id: options.StopTokenId = None,
    ignore_eos: options.IgnoreEos = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="ForwardInput the prompt as it is, without the chat template.")
    ] = False,
    system: options.System = None,
    backend: options.Backend = "auto",
    threads: options.Threads = None,
    context: options.Context = None,
    kv_dtype: options.KVDtype = None,
    quantize: options.Quantize = None,
    verifier: options.Verifier = "keyed",
    cascade: options.Cascade = None,
    controller: options.Controller = "auto",
    memory: options.Memory = None,
    remember: options.Remember = "matrix",
    prediction: options.Prediction = None,
    num_speculative_tokens: options.SpeculativeTokens = None,
    speculative_config: options.SpeculativeConfig = None,
    prompts: Annotated[
        Path | None, typer.Option(help="Answer each line of a JSONL file: id, category, prediction, prompt or turns.")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(help="With --prompts: how many at once.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object with everything there is to know.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="With JSON: what each round drafted and kept.")] = False,
    color: options.Color = False,
) -> int:
    """Answer a prompt, or every line of a file.

    Text appears as it is made; a summary line goes to stderr.
    """
    asked: dict[str, Any] = {
        "system": system,
        "raw": raw,
        "trace": trace,
        "prediction": options.prediction(command.params),
        **options.sampling(command.params),
    }
    if raw and system is not None:
        raise UsageError(
            "--raw inputs the prompt as it is, so there is no place for --system; leave one of the two out."
        )
    apart(output, prompts, prediction, memory, *options.named_files(command.params))
    if prompts is not None:
        if prompt is not None:
            raise UsageError("a prompt and --prompts were given; leave one of the two out.")
        if prediction is not None:
            raise UsageError('--prediction is for one prompt; with --prompts give each line its own "prediction".')
        from forerun.cli.batch import answer_file

        return answer_file(prompts, command.params, asked, concurrency, output)
    if concurrency is not None:
        raise UsageError("--concurrency is for many prompts; add --prompts FILE or leave it out.")
    if (trace or logprobs is not None) and not json:
        raise UsageError("--trace and --logprobs show in JSON only; add --json.")
    text = _read(prompt)
    with options.load(command.params) as llm, Output(output, color) as out:
        return _answer(llm, text, asked, out, json)


def _read(prompt: str | None) -> str:
    """The prompt: the argument, or standard input without the line end that closes it."""
    if prompt is None:
        raise UsageError("there is no prompt; give one, - to read it from standard input, or --prompts FILE.")
    if prompt == "-":
        try:
            prompt = sys.stdin.buffer.read().decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise PromptError(f"standard input is not UTF-8 text (byte {error.start}); convert it first.") from error
    if not prompt.strip():
        raise PromptError("the prompt is empty; give some text.")
    return prompt


def _answer(llm: LLM, prompt: str, asked: dict[str, Any], out: Output, as_json: bool) -> int:
    """Print one answer; whatever ends it early, what there is gets printed."""
    from forerun.cli.showing import show
    from forerun.cli.summary import summarize

    completion = show(llm.stream(prompt, **asked), None if as_json else out)
    if as_json:
        out.json(completion.as_dict())
    note(f"forerun: {summarize(completion)}")
    if completion.error is not None:
        raise BackendError(completion.error)
    return INTERRUPTED if completion.finish_reason == "abort" else 0
