"""The examples run as they stand and show what they say."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


Example = Callable[..., str]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Example:
    """Run a script of `examples/` with arguments and give what it printed."""

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


TESTED = {
    "generate.py": ("mean acceptance length", "tokens/s"),
    "stream.py": ("ended by length", "seed 7", "["),
    "batch.py": ("What is the capital of Norway?\n  ", "(32 tokens)"),
    "compare.py": ("same text: yes", "suffix", "plain", "mean acceptance length"),
    "own_drafter.py": ("same text: yes", "follower"),
}


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(TESTED)


@pytest.mark.parametrize("name", TESTED)
def test_an_example_on_the_toy(example: Example, name: str) -> None:
    said = example(name, *(() if name == "own_drafter.py" else ("toy",)))
    for words in TESTED[name]:
        assert words in said


@pytest.mark.models
def test_the_demo_on_its_own_model(example: Example) -> None:
    said = example("compare.py")
    assert "by smollm2-135m" in said
    assert "max(" in said
    assert "same text: yes" in said
