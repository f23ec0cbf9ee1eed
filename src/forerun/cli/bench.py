"""`forerun bench pass` and `forerun bench methods`: what a pass costs here, and what each way of drafting earns."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forerun.cli.files import apart
from forerun.cli.options import Backend, MaxTokens, Model, Seed, Temperature
from forerun.cli.output import Output, complain
from forerun.errors import UsageError, unknown

if TYPE_CHECKING:
    from forerun.assembly import FoundModel
    from forerun.bench.limits import Limits
    from forerun.bench.methods import Row, Run
    from forerun.bench.passes import PassTable
    from forerun.config import Config

bench = typer.Typer(help="Measure passes and drafting methods on this machine, as pairs in one run.")
Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")]
Threads = Annotated[int | None, typer.Option(help="Threads of a pass, for the peer too; default: all cores.")]


@bench.command("pass")
def passes(
    model: Model = None,
    rows: Annotated[str, typer.Option(help="Row counts, separated by commas.")] = "1,2,4,8,16,32",
    context: Annotated[str, typer.Option(help="Tokens already read; several, separated by commas.")] = "256",
    peer: Annotated[str | None, typer.Option(help="Another engine to run beside: llamacpp.")] = None,
    repeats: Annotated[int, typer.Option(help="Interleaved repeats; medians are shown.")] = 15,
    threads: Threads = None,
    backend: Backend = "auto",
    json: Json = False,
) -> int:
    """Time verification passes of several sizes, beside a peer on the same file and the machine's own limits."""
    from forerun.assembly import find_model
    from forerun.bench.limits import limits_of
    from forerun.bench.passes import Ours, measure_passes
    from forerun.bench.peers import LlamaCpp, Peer

    sizes, contexts = numbers("rows", rows), numbers("context", context)
    known_peer(peer)
    if repeats < 1:
        raise UsageError(f"--repeats is {repeats}; it must be at least 1.")
    longest = max(contexts) + max(sizes) + 8
    config = _config(model, backend, threads, longest)
    source = find_model(config.model, config)
    loaded = source.model
    engines: list[Peer] = [Ours(loaded)]
    if peer is not None:
        used = getattr(loaded, "threads", None) or threads or 1
        file = Path() if source.weights is None else source.weights.path
        engines.append(LlamaCpp(file, threads=used, context=longest))
    limits = limits_of(loaded, source.weights)
    text = _text(source, longest)
    tables = [
        table
        for length in contexts
        for table in measure_passes(engines, sizes, text=text, context=length, repeats=repeats)
    ]
    with Output() as output:
        if json:
            output.json({"model": source.name, "limits": limits.as_dict(), "passes": [t.as_dict() for t in tables]})
        else:
            _show_passes(tables, limits)
    for engine in engines:
        engine.close()
    return 0


@bench.command("methods")
def methods(
    prompts: Annotated[Path, typer.Argument(help="JSON lines with prompt or turns (the first turn is used).")],
    model: Model = None,
    methods: Annotated[
        str, typer.Option(help="Drafters to compare, separated by spaces; `none` is always among them.")
    ] = "ngram auto",
    max_tokens: MaxTokens = 64,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    per_category: Annotated[int, typer.Option(help="At most this many prompts of each category; 0: all.")] = 0,
    backend: Backend = "auto",
    threads: Threads = None,
    log: Annotated[Path | None, typer.Option(help="Write one JSON line per prompt and method here.")] = None,
    json: Json = False,
) -> int:
    """Run each prompt under each method in turn on one loaded target; the same text is checked before any time counts."""
    from forerun.assembly import build, find_model
    from forerun.bench.methods import PLAIN, run_methods, tabulate
    from forerun.llm import LLM

    apart(log, prompts, model)
    names = list(dict.fromkeys([PLAIN, *methods.split()]))
    asked = questions(prompts, per_category)
    config = _config(model, backend, threads, None)
    source = find_model(config.model, config)
    asks = {
        name: LLM(build(replace(config, draft=name, keep_prefixes=0, remember="nothing"), source)).generate
        for name in names
    }
    runs: list[Run] = []
    with Output(log) if log is not None else contextlib.nullcontext() as lines:
        for run in run_methods(asks, asked, seed=seed or 0, max_tokens=max_tokens, temperature=temperature):
            runs.append(run)
            if lines is not None:
                lines.json(run.as_dict())
            if not run.same:
                complain(f"{run.method} wrote another text than plain decoding on prompt {run.prompt}.")
    table = tabulate(runs)
    with Output() as output:
        if json:
            output.json({"model": source.name, "rows": [row.as_dict() for row in table]})
        else:
            _show_methods(table)
    return 1 if any(row.different for row in table) else 0


def _config(model: str | None, backend: str, threads: int | None, context: int | None) -> Config:
    """What the options ask for."""
    from forerun.config import Config
    from forerun.models import DEFAULT_MODEL, TerminalProgress

    name = model or DEFAULT_MODEL
    return Config(model=name, backend=backend, threads=threads, context=context, progress=TerminalProgress())


def questions(path: Path, per_category: int) -> list[tuple[str, str, str]]:
    from forerun.cli.prompts import first_turns

    counts: dict[str, int] = {}
    chosen = []
    for text, question in first_turns(path):
        category = str(question.labels.get("category", ""))
        counts[category] = counts.get(category, 0) + 1
        if per_category <= 0 or counts[category] <= per_category:
            chosen.append((str(question.labels.get("id", question.line)), category, text))
    return chosen


def _text(source: FoundModel, length: int) -> list[int]:
    """So many tokens of ordinary text."""
    from forerun.tokenizers.frequency import library_texts

    tokens: list[int] = []
    for piece in library_texts():
        tokens += source.tokenizer.encode(piece, add_bos=False)
        if len(tokens) >= length:
            break
    tokens = tokens or source.tokenizer.encode("A Python without its sources still has a sentence.", add_bos=False)
    return list(itertools.islice(itertools.cycle(tokens), length))


def known_peer(name: str | None) -> None:
    """Raises UsageError for a peer that is unknown or not installed."""
    from forerun.bench.peers import llama_cpp

    if name is None:
        return
    if name not in ("llamacpp", "llama-cpp"):
        raise unknown("peer", name, ["llamacpp"])
    llama_cpp()


def numbers(what: str, text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise UsageError(f"--{what} is {text!r}; give whole numbers from 1 on, separated by commas.")
    return numbers


def _show_passes(tables: list[PassTable], limits: Limits) -> None:
    table = bare_table(["engine", "context", *[f"T({rows}) ms" for rows in tables[0].seconds], "prefill tok/s"])
    for one in tables:
        cells = [f"{s * 1e3:.1f} ({one.v(rows):.2f})" for rows, s in one.seconds.items()]
        table.add_row(one.engine, str(one.context), *cells, f"{one.prefill:.0f}")
    table.add_row("the machine's floor", "", *(f"{limits.floor(rows) * 1e3:.1f}" for rows in tables[0].seconds), "")
    print_table(table, [limits.describe(), "In brackets: v(n) = T(n) / T(1)."])


def _show_methods(rows: list[Row]) -> None:
    table = bare_table(
        ["category", "method", "n", "same", "decode", "mean", "whole", "tok/s", "accept len", "draft", "verify", "rest"]
    )
    for row in rows:
        table.add_row(
            row.category,
            row.method,
            str(row.prompts),
            "yes" if not row.different else f"{row.different} differ",
            f"{row.decode_ratio:.2f}x",
            f"{row.mean_ratio:.2f}x",
            f"{row.whole_ratio:.2f}x",
            f"{row.tokens_per_second:.1f}",
            f"{row.stats.mean_acceptance_length:.2f}",
            *(f"{share:.1%}" for share in row.shares()),
        )
    print_table(
        table,
        [
            "decode and whole: seconds of plain decoding over the method's, without and with the prompt.",
            "mean: the mean over the prompts of the former, where a long answer counts no more than a short one.",
        ],
    )


def bare_table(columns: list[str]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < 2 else "right")
    return table


def print_table(table: Any, notes: list[str]) -> None:
    import sys

    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    console.print(table)
    for note in notes:
        console.print(note, style="dim")
