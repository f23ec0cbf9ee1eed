"""One answer while it is written: what is said meanwhile, and where."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

import forerun
from forerun.cli.activity import Activity
from forerun.cli.output import Output
from forerun.cli.showing import show

PROMPT = "the target reads " * 60


class Said(Activity):
    """Notes what is said, and when the line is taken away."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.texts: list[str] = []

    def say(self, text: str) -> None:
        self.texts.append(text)

    def clear(self) -> None:
        self.texts.append("")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def stream() -> forerun.Stream:
    return forerun.LLM.load("toy", draft="none").stream(PROMPT, max_tokens=3, ignore_eos=True)


def reading() -> list[str]:
    """What is said about the prompt: the whole chunks of it."""
    read = forerun.LLM.load("toy").assembly.engine.scheduler._prefill_rows
    said = [f"reading the prompt: {n:,} of 1,020 tokens" for n in range(read, 1020, read)]
    assert len(said) > 1
    return ["reading the prompt", *said]


def test_the_prompt_is_counted_and_the_line_gone_before_the_first_word(
    stream: forerun.Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen, said = Terminal(), Said()
    monkeypatch.setattr(sys, "stdout", screen)
    completion = show(stream, Output(), said)
    assert screen.getvalue() == completion.text + "\n"
    assert said.texts == [*reading(), "", "", "", ""]


@pytest.mark.parametrize("json", [True, False])
def test_what_nobody_sees_is_counted_while_it_is_written(stream: forerun.Stream, tmp_path: Path, json: bool) -> None:
    said = Said()
    with Output(tmp_path / "out") as out:
        completion = show(stream, None if json else out, said)
    assert completion.usage.completion_tokens == 3
    assert said.texts == [*reading(), "writing: 1 token", "writing: 2 tokens", "writing: 3 tokens", ""]
