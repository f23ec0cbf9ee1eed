"""The public list `forerun.__all__` is true, and importing the package costs nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import forerun

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_every_public_name_is_there_and_has_its_home_in_forerun() -> None:
    for name in forerun.__all__:
        thing = getattr(forerun, name)
        if not name.startswith("__"):
            assert thing.__name__ == name
            assert thing.__module__.startswith("forerun."), name


def test_nothing_else_is_public() -> None:
    assert set(forerun._HOMES) | {"__version__"} == set(forerun.__all__)


def test_type_checkers_are_told_the_same_names_from_the_same_homes() -> None:
    tree = ast.parse(Path(forerun.__file__).read_text("utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    stated = {alias.name: node.module for node in imports for alias in node.names}
    assert {name: home for name, home in stated.items() if str(home).startswith("forerun.")} == forerun._HOMES


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(forerun, "no_such_name")


def test_the_version_is_the_projects() -> None:
    project = tomllib.loads(PROJECT.read_text("utf-8"))["project"]
    assert forerun.__version__ == project["version"]


def test_importing_forerun_and_starting_the_command_line_load_nothing_heavy() -> None:
    heavy = "{'numpy', 'tokenizers', 'gguf', 'jinja2', 'torch', 'rich.console', 'prompt_toolkit'}"
    code = f"import sys, forerun, forerun.cli.app; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
