"""What the README and CONTRIBUTING say about the repository is so."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


def file_map() -> list[str]:
    """Every path in the table under "Where things are"."""
    table = README.partition("## Where things are")[2]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [path for row in rows for path in re.findall(r"`([^`]+)`", row)]


def test_every_path_of_the_file_map_exists() -> None:
    assert len(file_map()) > 10
    assert [path for path in file_map() if not (ROOT / path).exists()] == []


def test_every_package_is_in_the_file_map() -> None:
    packages = {f"src/forerun/{path.parent.name}/" for path in (ROOT / "src" / "forerun").glob("*/__init__.py")}
    assert packages - set(file_map()) == set()


@pytest.mark.parametrize("text", [README, CONTRIBUTING], ids=["README", "CONTRIBUTING"])
def test_paths_commands_and_links_exist(text: str) -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / link).exists(), link
    for target in re.findall(r"(?<!\w)make ((?:[a-z]+ ?)+)(?= {2}|`|$)", text, re.MULTILINE):
        for word in target.split():
            assert re.search(rf"^{word}:", MAKEFILE, re.MULTILINE), word
    for path in re.findall(r"`((?:src|tests|examples)/[\w/.]+)`", text):
        assert "NAME" in path or (ROOT / path).exists(), path


def test_the_options_shown_exist() -> None:
    from typer.main import get_command

    from forerun.cli.app import app

    commands = get_command(app).commands  # type: ignore[attr-defined]
    shown = re.findall(r"^\$ forerun (\w+) ?([^#\n]*)", README, re.MULTILINE)
    assert len(shown) > 5
    for command, rest in shown:
        known = {option for parameter in commands[command].params for option in parameter.opts}
        assert set(re.findall(r"(?<!\S)--?[a-z][\w-]*", rest)) <= known


def test_the_python_shown_is_python() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        ast.parse(block)
