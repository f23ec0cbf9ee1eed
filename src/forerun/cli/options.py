"""Options that several commands share, and what they mean to the library."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forerun.cli.files import reading
from forerun.cli.output import complain
from forerun.errors import UsageError

if TYPE_CHECKING:
    from forerun.llm import LLM

_SAMPLING = "Sampling"
_SPECULATION = "Speculation"
_MACHINE = "Machine"

Model = Annotated[
    str | None, typer.Option("--model", "-m", help="Catalogue name, GGUF file, Hugging Face folder or hub id.")
]
Backend = Annotated[str, typer.Option(help="auto (the fastest here), cpu, reference or toy.", rich_help_panel=_MACHINE)]
Threads = Annotated[int | None, typer.Option(help="All cores unless said.", rich_help_panel=_MACHINE)]
Context = Annotated[
    int | None, typer.Option(help="Most tokens of a text; the model's own unless said.", rich_help_panel=_MACHINE)
]
KVDtype = Annotated[
    str | None, typer.Option("--kv-dtype", help="fp16 or fp32 (cpu backend).", rich_help_panel=_MACHINE)
]
Quantize = Annotated[
    str | None, typer.Option(help="w8 or w4, for weights that are not quantized.", rich_help_panel=_MACHINE)
]
System = Annotated[str | None, typer.Option(help="A system message in front.")]
Color = Annotated[bool, typer.Option("--color", help="On a terminal, color the tokens that were drafted.")]

Draft = Annotated[
    str,
    typer.Option(
        "--draft",
        "-d",
        help="none, auto, ngram, suffix, recycling, model:NAME, ..., or several: a+b is one tree, a,b the first that speaks.",
        rich_help_panel=_SPECULATION,
    ),
]
Verifier = Annotated[
    str,
    typer.Option(help="keyed: the same text per seed. Others: keep the law only.", rich_help_panel=_SPECULATION),
]
Cascade = Annotated[
    str | None,
    typer.Option(
        help="A lossy rule by name and strength: the text may differ.",
        metavar="RULE:ALPHA",
        rich_help_panel=_SPECULATION,
    ),
]
Controller = Annotated[
    str,
    typer.Option(help="auto, goodput (drafts what pays by measured costs) or fixed.", rich_help_panel=_SPECULATION),
]
Memory = Annotated[
    Path | None, typer.Option(help="A file of earlier texts for suffix to draft from.", rich_help_panel=_SPECULATION)
]
Remember = Annotated[
    str,
    typer.Option(
        help="What later runs may draft from: nothing, matrix (recycling's, no text) or texts too.",
        rich_help_panel=_SPECULATION,
    ),
]
SpeculativeTokens = Annotated[
    int | None, typer.Option(help="Tokens drafted a round, at most.", rich_help_panel=_SPECULATION)
]
SpeculativeConfig = Annotated[
    str | None,
    typer.Option(help="The same as JSON, with vLLM's names.", metavar="JSON", rich_help_panel=_SPECULATION),
]

Prediction = Annotated[
    Path | None,
    typer.Option(
        help="A text file that the answer is expected to be like, for the drafter of that name.",
        rich_help_panel=_SPECULATION,
    ),
]

MaxTokens = Annotated[int, typer.Option("--max-tokens", "-n", help="At most this many tokens.")]
Temperature = Annotated[float, typer.Option("--temperature", "-t", help="0 is greedy.", rich_help_panel=_SAMPLING)]
TopP = Annotated[float, typer.Option(help="Smallest set with this mass; 1 is off.", rich_help_panel=_SAMPLING)]
TopK = Annotated[int, typer.Option(help="The k most likely tokens; 0 is off.", rich_help_panel=_SAMPLING)]
MinP = Annotated[float, typer.Option(help="At least this share of the best; 0 is off.", rich_help_panel=_SAMPLING)]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same text.", rich_help_panel=_SAMPLING)]
RepetitionPenalty = Annotated[float, typer.Option(help="1 is off.", rich_help_panel=_SAMPLING)]
PresencePenalty = Annotated[float, typer.Option(help="0 is off.", rich_help_panel=_SAMPLING)]
FrequencyPenalty = Annotated[float, typer.Option(help="0 is off.", rich_help_panel=_SAMPLING)]
LogitBias = Annotated[
    list[str] | None,
    typer.Option(
        help="Add to a token's logit; -inf bans it. Repeatable.", metavar="ID=BIAS", rich_help_panel=_SAMPLING
    ),
]
Stop = Annotated[list[str] | None, typer.Option(help="End at this text and cut it off. Repeatable.")]
StopTokenId = Annotated[list[int] | None, typer.Option(help="End at this token. Repeatable.")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Do not end at the model's end token.")]
Logprobs = Annotated[int | None, typer.Option(help="Log-probabilities, with this many alternatives (--json).")]

# Sampling's name for an option, where the option is named otherwise.
_OPTION_OF = {"stop_token_ids": "stop_token_id"}

# Options of the model and the machine, and the config's names for them.
_PLAN = {
    "model": "model",
    "draft": "draft",
    "verifier": "verifier",
    "cascade": "cascade",
    "controller": "controller",
    "memory": "memory",
    "remember": "remember",
    "num_speculative_tokens": "num_speculative_tokens",
    "backend": "backend",
    "threads": "threads",
    "context": "context",
    "kv_dtype": "kv_dtype",
    "quantize": "quantize",
}

# vLLM's names, and the config's where they differ. Those mapped to None choose the drafter.
_CONFIG = {
    "method": None,
    "model": None,
    "num_speculative_tokens": "num_speculative_tokens",
    "prompt_lookup_min": "prompt_lookup_min",
    "prompt_lookup_max": "prompt_lookup_max",
}


def sampling(params: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling parameters among a command's options, checked. Raises SamplingError or UsageError."""
    from forerun.core.sampling import Sampling

    chosen: dict[str, Any] = {name: params.get(_OPTION_OF.get(name, name)) for name in Sampling.names()}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    chosen["logit_bias"] = dict(_bias(text) for text in params.get("logit_bias") or ())
    Sampling(**chosen)
    return chosen


def load(params: Mapping[str, Any], **more: Any) -> LLM:
    """The model that a command's options ask for, with `more` fields of the config. Raises what `LLM.load` raises."""
    chosen = config(params) | more
    from forerun.llm import LLM
    from forerun.models.progress import TerminalProgress

    try:
        llm = LLM.load(progress=TerminalProgress(), **chosen)
    except KeyboardInterrupt:
        complain("interrupted before anything was written; a pull goes on from where it stopped.")
        raise
    for line in llm.assembly.notes:
        complain(line)
    return llm


def config(params: Mapping[str, Any]) -> dict[str, Any]:
    """The `build.Config` fields among a command's options; what is not given is left out. Raises UsageError."""
    chosen = {name: params[option] for option, name in _PLAN.items() if params.get(option) is not None}
    if (config := params.get("speculative_config")) is not None:
        chosen |= speculative_config(config)
    return chosen


def named_files(params: Mapping[str, Any]) -> list[str]:
    """What stands for models and heads among a command's options, some of which are files. Raises UsageError."""
    chosen = config(params)
    return [chosen.get("model") or "", *re.split(r'[|,+><()":@=]', chosen.get("draft", ""))]


def prediction(params: Mapping[str, Any]) -> str | None:
    """The text of `--prediction`. Raises UsageError for a file that cannot be read."""
    path = params.get("prediction")
    if path is None:
        return None
    with reading(path):
        text: str = path.read_text(encoding="utf-8")
    return text


def speculative_config(text: str) -> dict[str, Any]:
    """Config fields from a JSON object with vLLM's names. Raises UsageError, naming what is not understood."""
    try:
        config = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--speculative-config is not JSON ({error}); {_example()}") from error
    if not isinstance(config, dict):
        raise UsageError(f"--speculative-config must be a JSON object; {_example()}")
    if unknown := sorted(config.keys() - _CONFIG.keys()):
        raise UsageError(f"--speculative-config has no {unknown[0]!r}; it knows {', '.join(_CONFIG)}.")
    chosen: dict[str, Any] = {}
    for key, value in config.items():
        name = _CONFIG[key]
        wanted = str if name is None else int
        if not isinstance(value, wanted) or isinstance(value, bool):
            kind = "text" if wanted is str else "a whole number"
            raise UsageError(f"{key} in --speculative-config is {value!r}; it must be {kind}.")
        if name is not None:
            chosen[name] = value
    if (draft := _drafter(config)) is not None:
        chosen["draft"] = draft
    return chosen


def _drafter(config: Mapping[str, Any]) -> str | None:
    """`method` and `model` as vLLM reads them: a model alone is a draft model."""
    method, model = config.get("method"), config.get("model")
    if method in (None, "draft_model") and model is not None:
        from forerun.drafters.grammar import Single

        return str(Single("model", model))
    if method == "draft_model":
        raise UsageError('method draft_model in --speculative-config needs a model; add "model": "NAME".')
    if model is not None:
        raise UsageError(f"method {method} in --speculative-config takes no model; leave one of the two out.")
    return method


def _bias(text: str) -> tuple[int, float]:
    token, equals, bias = text.partition("=")
    try:
        if not equals or math.isnan(float(bias)):
            raise ValueError
        return int(token), float(bias)
    except ValueError:
        raise UsageError(f"--logit-bias {text!r} is not ID=BIAS, such as 1234=-2.5 or 1234=-inf.") from None


def _example() -> str:
    return """try '{"method": "ngram", "num_speculative_tokens": 5}'."""
