"""The files of the command line: short, without circles, and with messages that name options which exist."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import forerun

ROOT = Path(forerun.__file__).parent
CLI = ROOT / "cli"


def imported(path: Path) -> set[str]:
    """Files of the command line that a file of it imports, also inside functions, but not for types only."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("forerun.cli"):
            stem = str(node.module).removeprefix("forerun.cli").removeprefix(".")
            names |= {stem} if stem else {alias.name for alias in node.names}
    return names & {other.stem for other in CLI.glob("*.py")}


def test_there_are_no_circles() -> None:
    graph = {path.stem: imported(path) for path in CLI.glob("*.py")}
    assert {"app", "output", "status"} <= graph["guard"]
    # Raises CycleError, which names the files of the circle.
    assert len(list(TopologicalSorter(graph).static_order())) == len(graph)


def test_files_are_short() -> None:
    assert [path.name for path in CLI.glob("*.py") if len(path.read_text("utf-8").splitlines()) > 300] == []


def options() -> set[str]:
    """Every option of every command."""
    from typer.main import get_command

    from forerun.cli.app import app

    commands, found = [get_command(app)], {"--help"}
    while commands:
        command = commands.pop()
        commands += getattr(command, "commands", {}).values()
        found |= {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
    return found


def test_every_option_that_a_message_names_exists() -> None:
    """Of forerun's own programs: what is said of others stands in `backquotes`."""
    known, wrong, seen = options(), [], 0
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = re.sub(r"`([^`]*)`", lambda q: q[1] if q[1].startswith("forerun") else "", node.value)
                if re.fullmatch(r"--[\w=:-]+", text):  # an argument of another program
                    continue
                named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", text))
                seen += len(named)
                wrong += [f"{path.relative_to(ROOT)}:{node.lineno}: {name}" for name in sorted(named - known)]
    assert wrong == []
    assert seen > 30
