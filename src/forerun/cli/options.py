"""Options that several commands share, as the command line declares them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from forerun.errors import UsageError, quoted


def as_text(value: str | None) -> str | None:
    """An argument that is a text, as it was typed: where the locale cannot hold it, its bytes are read as UTF-8.

    Raises UsageError for bytes that are not.
    """
    if value is None or value.isascii():
        return value
    try:
        return os.fsencode(value).decode("utf-8")
    except UnicodeError:
        pass
    try:
        value.encode()
    except UnicodeError as error:
        raise UsageError(
            f"the argument {quoted(value)} is not UTF-8 text; convert it, or pass it on standard input."
        ) from error
    return value


def as_texts(values: list[str] | None) -> list[str] | None:
    """The same for an option that may come several times."""
    return None if values is None else [as_text(value) or "" for value in values]


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
KVMemory = Annotated[
    str | None,
    typer.Option(
        "--kv-memory",
        help="For keys and values, such as 2GiB; most of what is free unless said.",
        rich_help_panel=_MACHINE,
    ),
]
System = Annotated[str | None, typer.Option(help="A system message in front.", callback=as_text)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No summary, no progress and no notes on stderr.")]
Color = Annotated[bool, typer.Option("--color", help="On a terminal, color the tokens that were drafted.")]

Draft = Annotated[
    str,
    typer.Option(
        "--draft",
        "-d",
        help="none, auto, ngram, suffix, recycling, model:NAME, ..., or several: a+b is one tree, a|b what pays.",
        rich_help_panel=_SPECULATION,
    ),
]
Verifier = Annotated[
    str,
    typer.Option(
        help="keyed: the same text per seed. Others: the same distribution only.", rich_help_panel=_SPECULATION
    ),
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
    typer.Option(
        help="auto, goodput (drafts what pays by measured costs), heuristic (transformers' schedule) or fixed.",
        rich_help_panel=_SPECULATION,
    ),
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
    int | None, typer.Option(help="Tokens drafted a step, at most.", rich_help_panel=_SPECULATION)
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
Stop = Annotated[list[str] | None, typer.Option(help="End at this text and cut it off. Repeatable.", callback=as_texts)]
StopTokenId = Annotated[list[int] | None, typer.Option(help="End at this token. Repeatable.")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Do not end at the model's end token.")]
Logprobs = Annotated[int | None, typer.Option(help="Log-probabilities, with this many alternatives (--json).")]
