"""`forerun cascade`: what cascades of a pair of models cost in agreement, and what they gain in speed."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forerun.cli.files import apart
from forerun.cli.options import Backend, MaxTokens, Model, System, Threads
from forerun.cli.output import Output, note, reason
from forerun.errors import CompositionError, ForerunError, UsageError

if TYPE_CHECKING:
    from forerun.assembly import FoundModel
    from forerun.cascade.sweep import Ask, Method, Point
    from forerun.llm import LLM


def cascade(
    prompts: Annotated[Path, typer.Argument(help="JSON lines with prompt or turns (the first), and answer if known.")],
    model: Model = None,
    drafter: Annotated[
        str | None, typer.Option(help="The draft model; the catalogue's smallest of its family unless said.")
    ] = None,
    rules: Annotated[str, typer.Option(help="Rules, separated by spaces.")] = "chow diff opt v1 v2 v3",
    alphas: Annotated[str, typer.Option(help="Strengths, separated by commas.")] = "0.1,0.3,0.5,0.8",
    num_speculative_tokens: Annotated[int, typer.Option(help="Tokens drafted a step.")] = 4,
    max_tokens: MaxTokens = 64,
    limit: Annotated[int, typer.Option(help="Only the first so many prompts; 0: all.")] = 0,
    system: System = None,
    backend: Backend = "auto",
    threads: Threads = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the curve into this file (.svg, .png or .pdf).")] = None,
    log: Annotated[Path | None, typer.Option(help="Write one JSON line per prompt and method here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> int:
    """Draw the cost-quality curve of a pair: speed against agreement with the target, rule by rule, greedily.

    Beside the speculative cascades run the target alone, the drafter alone, lossless speculation and the plain cascade.
    """
    from forerun.assembly import find_model
    from forerun.cascade.sweep import methods, run_sweep, tabulate
    from forerun.config import Config
    from forerun.models import DEFAULT_MODEL, TerminalProgress

    apart(log, prompts, model, drafter, picture)
    apart(picture, prompts, model, drafter)
    if picture is not None:
        _check_picture(picture)
    asks = questions(prompts)[: limit or None]
    chosen = methods(_rules(rules), _alphas(alphas))
    name = model or DEFAULT_MODEL
    config = Config(backend=backend, threads=threads, progress=TerminalProgress())
    partner = drafter or _drafter_of(name)
    target, draft = find_model(name, config), find_model(partner, config)
    llms = assemble(target, draft, chosen, num_speculative_tokens)
    runs = []
    with Output(log) if log is not None else contextlib.nullcontext() as out:
        for run in run_sweep(llms, asks, target.model, max_tokens, system):
            runs.append(run)
            if out is not None:
                out.json(run.as_dict())
    points = tabulate(runs)
    if picture is not None:
        draw(points, f"{target.name} with {draft.name}, {len(asks)} prompts", picture)
        note(f"forerun: the curve is in {picture}")
    with Output() as out:
        if json:
            rows = [point.as_dict(points[0]) for point in points]
            out.json({"model": target.name, "drafter": draft.name, "prompts": len(asks), "points": rows})
        else:
            _table(points, out)
    return 0


def questions(path: Path) -> list[Ask]:
    """The prompts of a file with their answers (`answer`: a text, a number, or a list of them). Raises UsageError."""
    from forerun.cascade.sweep import Ask
    from forerun.cli.prompts import first_turns

    return [
        Ask(str(question.labels.get("id", question.line)), text, _answers(question.labels.get("answer")))
        for text, question in first_turns(path)
    ]


def _answers(answer: Any) -> tuple[str, ...]:
    given = answer if isinstance(answer, list) else [] if answer is None else [answer]
    return tuple(text for text in (str(each).strip() for each in given) if text)


def assemble(target: FoundModel, drafter: FoundModel, chosen: Sequence[Method], nodes: int) -> dict[Method, LLM]:
    """One LLM for each method, all on the same two loaded models. nodes: tokens drafted a step.

    Raises CompositionError for models of different vocabularies, UsageError for a wrong rule or strength.
    """
    from forerun.assembly import build
    from forerun.cascade.sweep import DRAFTER, LOSSLESS, TARGET
    from forerun.config import Config
    from forerun.llm import LLM
    from forerun.tokenizers.vocabulary import compare

    report = compare(target.tokenizer, drafter.tokenizer)
    if not report.shared:
        raise CompositionError(
            f"{drafter.name} cannot draft for {target.name} in a cascade, which mixes their distributions: "
            f"{report.describe()}."
        )
    draft = f'model:"{drafter.name}"'

    def made(method: Method) -> LLM:
        if method.kind == DRAFTER:
            # It reads prompts as the target does.
            alone = build(Config(draft="none", keep_prefixes=0), drafter)
            return LLM(replace(alone, tokenizer=target.tokenizer, template=target.template))
        if method.kind == TARGET:
            return LLM(build(Config(draft="none", keep_prefixes=0), target))
        cascade = None if method.kind == LOSSLESS else f"{method.kind}:{method.alpha!r}"
        config = Config(draft=draft, cascade=cascade, num_speculative_tokens=nodes, keep_prefixes=0)
        return LLM(build(config, target, {drafter.name: drafter}))

    # The rules are built first: a wrong one is said before anything runs.
    return {method: made(method) for method in sorted(chosen, key=lambda method: method.alpha is None)}


def _check_picture(path: Path) -> None:
    """Before anything runs: raise UsageError where the picture could not be drawn at the end."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ModuleNotFoundError:
        raise UsageError("--picture needs matplotlib; pip install 'forerun[plot]'.") from None
    kinds = FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:].lower() not in kinds:
        raise UsageError(f"{path} is no kind of picture; known: {', '.join(f'.{kind}' for kind in sorted(kinds))}.")


def draw(points: list[Point], title: str, path: Path) -> None:
    """The curve as a picture: a line for each rule from weak to strong, a dot for each baseline.

    Raises ForerunError where it cannot be written.
    """
    from matplotlib.figure import Figure

    series: dict[str, list[dict[str, Any]]] = {}
    for point in points:
        series.setdefault(point.method.kind, []).append(point.as_dict(points[0]))
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for kind, told in series.items():
        axes.plot([one["agreement"] for one in told], [one["speed"] for one in told], "o-", label=kind, gid=kind)
    axes.set(title=title, xlabel="share of tokens that the target chooses itself", ylabel="speed over the target alone")
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path)
    except OSError as error:
        raise ForerunError(f"cannot write {path}: {reason(error)}; choose another file.") from error


def _table(points: list[Point], out: Output) -> None:
    out.piece(
        f"{'method':<10}{'tok/s':>8}{'speed':>8}{'agreement':>11}{'score':>8}{'accepted':>10}{'not deferred':>14}\n"
    )
    for point in points:
        told = point.as_dict(points[0])
        score = "-" if told["score"] is None else f"{told['score']:.1%}"
        drafted = f"{told['mean_acceptance_length']:.2f}" if point.stats.spec_steps else "-"
        deferred = f"{told['not_deferred']:.0%}" if point.given_up.not_deferred else "-"
        out.piece(
            f"{told['method']:<10}{told['tokens_per_second']:>8.1f}{told['speed']:>7.2f}x{told['agreement']:>11.1%}"
            f"{score:>8}{drafted:>10}{deferred:>14}\n"
        )
    out.piece("agreement: tokens that the target chooses itself; accepted: mean acceptance length, bonus included\n")


def _drafter_of(name: str) -> str:
    from forerun.models.catalogue import lookup

    entry = lookup(name)
    if entry is None or entry.drafter is None:
        raise UsageError(f"no draft model is known for {name}; name one with --drafter.")
    return entry.drafter


def _rules(text: str) -> list[str]:
    from forerun.cascade.mixtures import Mixture

    # `plain` is always among the methods.
    return [rule for rule in text.lower().split() if rule != "plain" and Mixture(rule, 0.0)]


def _alphas(text: str) -> list[float]:
    try:
        alphas = sorted({float(part) for part in text.split(",")})
    except ValueError:
        alphas = []
    if not alphas or not all(0 <= alpha < 1e6 for alpha in alphas):
        raise UsageError(f"--alphas is {text!r}; give numbers from 0 on, separated by commas.")
    return alphas
