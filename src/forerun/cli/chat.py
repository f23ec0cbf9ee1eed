"""`forerun chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from forerun.cli import options, parameters
from forerun.cli.output import Output, note
from forerun.errors import UsageError


def chat(
    command: typer.Context,
    model: options.Model = None,
    draft: options.Draft = "auto",
    max_tokens: options.MaxTokens = 512,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    presence_penalty: options.PresencePenalty = 0.0,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    logit_bias: options.LogitBias = None,
    stop: options.Stop = None,
    stop_token_id: options.StopTokenId = None,
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
    num_speculative_tokens: options.SpeculativeTokens = None,
    speculative_config: options.SpeculativeConfig = None,
    no_history: Annotated[
        bool, typer.Option("--no-history", help="Do not keep what is typed for the next chat's arrow keys.")
    ] = False,
    color: options.Color = False,
    quiet: options.Quiet = False,
) -> int:
    """Talk with a model. The conversation is kept; /help lists what else there is."""
    from forerun.cli.conversation import Conversation
    from forerun.cli.lines import HISTORY, lines_for
    from forerun.cli.talking import talk
    from forerun.core.files import default_home

    asked = parameters.sampling(command.params)
    with parameters.load(command.params) as llm, Output(color=color) as out:
        parts = llm.assembly
        if parts.template is None:
            raise UsageError(f"{parts.model} has no chat template (it is a base model); use forerun generate.")
        if sys.stdin.isatty() and not quiet:
            note(f"{parts.model}, drafting with {parts.draft}. /help for help.")
        lines = lines_for(None if no_history else default_home() / HISTORY)
        talk(Conversation(llm, system, asked, out, quiet), lines)
    return 0
