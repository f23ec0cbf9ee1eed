"""The commands of `forerun`. Each lives in a file of its own and imports what it runs only when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from forerun.cli.bench import bench
from forerun.cli.bench_serve import serve as bench_serve
from forerun.cli.cache import cache
from forerun.cli.cascade import cascade
from forerun.cli.chat import chat
from forerun.cli.compat import compat
from forerun.cli.generate import generate
from forerun.cli.memory import memory
from forerun.cli.models import models
from forerun.cli.pull import pull
from forerun.cli.serve import serve

app = typer.Typer(
    help="Language models that answer faster and still say the same thing.",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from forerun import __version__

        typer.echo(f"forerun {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


for command in (generate, chat, serve, pull, compat, cascade):
    app.command()(command)
bench.command("serve")(bench_serve)
app.add_typer(bench, name="bench")
app.add_typer(models, name="models")
app.add_typer(memory, name="memory")
app.add_typer(cache, name="cache")
