"""`forerun bench serve`: a server under load, with speculation off, on and as it decides itself."""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forerun.cli.bench import bare_table, known_peer, numbers, print_table, questions
from forerun.cli.files import apart
from forerun.cli.options import Backend, Draft, MaxTokens, Model, Seed, Temperature
from forerun.cli.output import Output, complain
from forerun.errors import UsageError, unknown

if TYPE_CHECKING:
    from forerun.bench.serving import Cell, Contender, Mode
    from forerun.bench.serving_table import Ratio, Row

_OFF, _ON, _AUTO = _MODES = ("off", "on", "auto")
_FEWEST_PLACES = 8


def serve(
    command: typer.Context,
    prompts: Annotated[
        Path | None,
        typer.Argument(
            help="JSON lines with prompt or turns (the first turn is used); 24 of several kinds unless said."
        ),
    ] = None,
    model: Model = None,
    streams: Annotated[str, typer.Option(help="Concurrent streams; several, separated by commas.")] = "1,2,4,8,16",
    closed: Annotated[
        bool, typer.Option("--closed", help="So many clients, in place of arrivals that keep so many streams live.")
    ] = False,
    modes: Annotated[str, typer.Option(help="Modes, separated by spaces; `off` is always among them.")] = "off on auto",
    num_speculative_tokens: Annotated[int, typer.Option(help="Tokens drafted in each step of `on`.")] = 4,
    on_draft: Annotated[str | None, typer.Option(help="What drafts in `on`; what the server has unless said.")] = None,
    draft: Draft = "auto",
    slo: Annotated[
        str, typer.Option(help="What counts as good: bounds on ttft, tpot and e2el.")
    ] = "ttft:500ms,tpot:100ms",
    repeats: Annotated[int, typer.Option(help="Interleaved repeats, each of other prompts.")] = 3,
    requests: Annotated[int, typer.Option(help="Requests for each stream in a repeat; at least 8 in all.")] = 4,
    max_tokens: MaxTokens = 128,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    per_category: Annotated[int, typer.Option(help="At most this many prompts of each category; 0: all.")] = 0,
    peer: Annotated[str | None, typer.Option(help="Another engine to run beside: llamacpp.")] = None,
    url: Annotated[str | None, typer.Option(help="A forerun server that runs already, in place of a new one.")] = None,
    api_key: Annotated[str | None, typer.Option(help="The key of that server.")] = None,
    backend: Backend = "auto",
    threads: Annotated[
        int | None, typer.Option(help="Threads of a pass, for the peer too; default: all cores.")
    ] = None,
    log: Annotated[Path | None, typer.Option(help="Write one JSON line per request and mode here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> int:
    """Ask one server the same in each mode in turn, under load; the same text is checked before any time counts."""
    from forerun.bench.latency import DEFINITIONS, parse_slo
    from forerun.bench.serving import BUILT_IN, cells_of, laps
    from forerun.bench.serving_table import tabulate

    asked = command.params
    levels, bounds = numbers("streams", streams), parse_slo(slo)
    names = _check(asked)
    apart(log, prompts, model)
    texts = [text for _, _, text in questions(prompts or BUILT_IN, per_category)]
    needed = laps(len(texts), levels, repeats, requests, closed)
    cells: list[Cell] = []
    with contextlib.ExitStack() as stack:
        lines = None if log is None else stack.enter_context(Output(log))
        found, server = stack.enter_context(_modes(asked, names, max(levels), needed))
        contenders: list[Contender] = [*found]
        if peer is not None:
            contenders.append(stack.enter_context(_peer(asked, found[0], texts, max(levels))))
        options: dict[str, Any] = {"levels": levels, "repeats": repeats, "per_stream": requests, "closed": closed}
        for cell in cells_of(contenders, texts, **options, seed=seed or 0, server=server):
            cells.append(cell)
            if lines is not None:
                for line in cell.lines():
                    lines.json(line)
    rows = tabulate(cells, bounds)
    same = not any(row.different for row in rows)
    with Output() as output:
        if json:
            told: dict[str, Any] = {"loop": "closed" if closed else "open", "slo_s": bounds, "same_text": same}
            output.json(told | {"definitions": DEFINITIONS, "rows": [row.as_dict() for row in rows]})
        else:
            _show(rows, names, closed, slo)
    for row in rows:
        for failure, count in row.failures.items():
            complain(f"{count} of {row.requests} requests failed ({row.mode}, {row.streams} streams): {failure}.")
        if row.different:
            complain(f"{row.mode} wrote another text than {_OFF} for {row.different} requests ({row.streams} streams).")
    return 0 if all(row.sound for row in rows) else 1


def _check(asked: Mapping[str, Any]) -> list[str]:
    """The modes that are asked for. Raises UsageError for options that make no sense."""
    for name in ("repeats", "requests", "max_tokens", "num_speculative_tokens"):
        if asked[name] < 1:
            raise UsageError(f"--{name.replace('_', '-')} is {asked[name]}; it must be at least 1.")
    names = asked["modes"].split()
    for name in names:
        if name not in _MODES:
            raise unknown("mode", name, _MODES)
    known_peer(asked["peer"])
    if asked["peer"] is not None and asked["temperature"] > 0:
        raise UsageError("the peer decodes greedily; leave --temperature out.")
    return [_OFF, *(name for name in (_ON, _AUTO) if name in names)]


@contextlib.contextmanager
def _modes(
    asked: Mapping[str, Any], names: Sequence[str], most: int, laps: int
) -> Iterator[tuple[list[Mode], int | None]]:
    """The modes of a server that runs already, or of one that runs as long as this; and its process id where it is ours.

    most: streams at once. laps: how many times the prompts are gone through: each mode has a key, which is a memory of its
    own for drafters and prefixes, for each.
    """
    from forerun.bench.hosting import hosted
    from forerun.bench.serving import Mode
    from forerun.bench.streams import Address

    on = {"num_speculative_tokens": asked["num_speculative_tokens"], "draft": asked["on_draft"]}
    body = {"max_tokens": asked["max_tokens"], "temperature": asked["temperature"]}
    bodies = {_OFF: {"enabled": False}, _ON: on, _AUTO: {"enabled": True}}
    bodies = {name: body | {"speculation": bodies[name]} for name in names}
    if asked["url"] is not None:
        complain("the modes share the server's memory, and what one was asked before helps the others draft.")
        address = Address.of(asked["url"])
        yield [Mode(name, address, [asked["api_key"]], bodies[name]) for name in names], None
        return
    keys = {name: [secrets.token_hex() for _ in range(laps)] for name in names}
    given = ["--backend", asked["backend"], "--draft", asked["draft"], "--remember", "nothing"]
    given += ["--max-batch", str(max(_FEWEST_PLACES, most)), "--max-queue", "10000"]
    for option in ("model", "threads"):
        given += [] if asked[option] is None else [f"--{option}", str(asked[option])]
    if asked["on_draft"] not in (None, asked["draft"]):
        given += ["--other-draft", asked["on_draft"]]
    with hosted(given, [key for several in keys.values() for key in several]) as server:
        yield [Mode(name, server.address, keys[name], bodies[name]) for name in names], server.pid


@contextlib.contextmanager
def _peer(asked: Mapping[str, Any], mode: Mode, texts: Sequence[str], most: int) -> Iterator[Contender]:
    """llama.cpp on the same file, with as many threads and places; it reads the tokens that the server reads."""
    from forerun.assembly import find_model
    from forerun.backends.cores import usable_cores
    from forerun.bench.peer_serving import LlamaCppServing
    from forerun.config import Config
    from forerun.models import DEFAULT_MODEL

    name = asked["model"] or DEFAULT_MODEL
    weights = find_model(name, Config(model=name, backend=asked["backend"])).weights
    encoded = {text: mode.tokens(text) for text in dict.fromkeys(texts)}
    serving = LlamaCppServing(
        Path() if weights is None else weights.path,
        encoded.__getitem__,
        threads=asked["threads"] or usable_cores(),
        sequences=max(_FEWEST_PLACES, most),
        longest=max(map(len, encoded.values())),
        max_tokens=asked["max_tokens"],
    )
    try:
        yield serving
    finally:
        serving.close()


def _show(rows: Sequence[Row], names: Sequence[str], closed: bool, slo: str) -> None:
    from forerun.bench.latency import DEFINITIONS, METRICS

    heads = ["streams", "mode", "n", "failed", "same", "live", "tok/s", "x off", "x best", "good/s", "good"]
    table = bare_table([*heads, *(f"{metric.upper()} ms" for metric in METRICS), "client", "others"])
    for row in rows:
        compared = "-" if row.mode not in _MODES else "yes" if not row.different else f"{row.different} differ"
        latencies = [" / ".join(f"{v * 1e3:.0f}" for v in row.latencies[metric].values()) for metric in METRICS]
        table.add_row(
            *(str(row.streams), row.mode, str(row.requests), str(sum(row.failures.values())), compared),
            *(f"{row.live:.1f}", f"{row.tokens_per_second:.1f}", _ratio(row.off), _ratio(row.best)),
            *(f"{row.good[0]:.2f}", f"{row.good[1]:.0%}", *latencies, f"{row.client:.0%}"),
            "?" if math.isnan(row.others) else f"{row.others:.1f}",
        )
    arrivals = (
        "closed loop: so many clients send their next request when they have the answer to the last one."
        if closed
        else "open loop: Poisson arrivals, at the rate that keeps so many streams live with speculation off."
    )
    print_table(
        table,
        [
            arrivals,
            _texts(rows, names),
            *(f"{name.upper()}: {definition}." for name, definition in DEFINITIONS.items()),
            "All four in milliseconds, as p50 / p90 / p99 over the requests.",
            f"good: requests within {slo}, a second, and their share of all. live: streams on average.",
            "x off, x best: times as fast as off, and as the better of off and on, by "
            + ("tokens a second" if closed else "E2EL seconds a token")
            + "; medians of pairs, with a 95 % interval.",
            "client, others: of a core that the client took; cores that were busy with other things.",
        ],
    )


def _texts(rows: Sequence[Row], names: Sequence[str]) -> str:
    """What came of comparing the texts."""
    compared = [row for row in rows if row.mode in names and row.mode != _OFF]
    if not compared:
        return "text: nothing to compare with off."
    asked, different = sum(row.compared for row in compared), sum(row.different for row in compared)
    modes = " and ".join(row for row in names if row != _OFF)
    told = f"the same token ids in {modes} as in off" if not different else f"{different} DIFFER from off"
    return f"text: {told}, of {asked} pairs of answers."


def _ratio(ratio: Ratio) -> str:
    interval = "" if math.isnan(ratio.low) else f" ({ratio.low:.2f}-{ratio.high:.2f})"
    return f"{ratio.median:.2f}{interval}"
