"""`forerun generate`: one answer, or one for each line of a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forerun.cli import options, parameters
from forerun.cli.activity import Activity
from forerun.cli.asking import prompt_of
from forerun.cli.files import apart
from forerun.cli.output import Output, note
from forerun.cli.status import INTERRUPTED
from forerun.errors import BackendError, UsageError

if TYPE_CHECKING:
    from forerun.llm import LLM


def generate(
    command: typer.Context,
    prompt: Annotated[
        str | None,
        typer.Argument(
            help="The prompt; - reads it from standard input. What comes in through a pipe or from a file is added to it.",
            callback=options.as_text,
        ),
    ] = None,
    file: Annotated[
        list[Path] | None, typer.Option("--file", "-f", help="Add a text file to the prompt. Repeatable.")
    ] = None,
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
        bool, typer.Option("--raw", help="Read the prompt as it is, to its last line end, without the chat template.")
    ] = False,
    special: Annotated[
        bool, typer.Option("--special", help="Read control tokens written in the prompt (<|im_end|>) as these tokens.")
    ] = False,
    system: options.System = None,
    backend: options.Backend = "auto",
    threads: options.Threads = None,
    context: options.Context = None,
    kv_dtype: options.KVDtype = None,
    kv_memory: options.KVMemory = None,
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
        Path | None,
        typer.Option(help="Answer each line of a JSONL file: prompt, turns or messages, and sampling parameters."),
    ] = None,
    concurrency: Annotated[int | None, typer.Option(help="With --prompts: how many at once.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object with everything there is to know.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="With JSON: what each step drafted and kept.")] = False,
    color: options.Color = False,
    quiet: options.Quiet = False,
) -> int:
    """Answer a prompt, or every line of a file.

    Text appears as it is made; a summary line goes to stderr.
    """
    if raw and system is not None:
        raise UsageError(
            "--raw reads the prompt as it is, so there is no place for --system; leave one of the two out."
        )
    asked: dict[str, Any] = {
        "system": system,
        "raw": raw,
        "special": special,
        "trace": trace,
        "prediction": parameters.prediction(command.params),
        **parameters.sampling(command.params),
    }
    apart(output, prompts, prediction, memory, *(file or ()), *parameters.named_files(command.params))
    if prompts is not None:
        if prompt is not None or file:
            given = "--file" if prompt is None else "a prompt"
            raise UsageError(f"{given} and --prompts were given; leave one of the two out.")
        if prediction is not None:
            raise UsageError('--prediction is for one prompt; with --prompts give each line its own "prediction".')
        from forerun.cli.batch import answer_file

        return answer_file(prompts, command.params, asked, concurrency, output)
    if concurrency is not None:
        raise UsageError("--concurrency is for many prompts; add --prompts FILE or leave it out.")
    if (trace or logprobs is not None) and not json:
        raise UsageError("--trace and --logprobs show in JSON only; add --json.")
    text = prompt_of(prompt, file or (), raw, quiet)
    with parameters.load(command.params) as llm, Output(output, color) as out:
        return _answer(llm, text, asked, out, json, quiet)


def _answer(llm: LLM, prompt: str, asked: dict[str, Any], out: Output, as_json: bool, quiet: bool) -> int:
    """Print one answer; whatever ends it early, what there is gets printed."""
    from forerun.cli.showing import show
    from forerun.cli.summary import summarize

    completion = show(llm.stream(prompt, **asked), None if as_json else out, Activity(quiet))
    if as_json:
        out.json(completion.as_dict())
    if not quiet:
        note(f"forerun: {summarize(completion, asked['max_tokens'])}")
    if completion.error is not None:
        raise BackendError(completion.error)
    return INTERRUPTED if completion.finish_reason == "abort" else 0
