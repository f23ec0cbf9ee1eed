"""Many prompts: what is said while they are answered, and that it is out of the way of the answers."""

from __future__ import annotations

import json

import pytest

import forerun
from forerun.cli.batch import Batch
from forerun.cli.output import Output
from forerun.cli.prompts import parse
from tests.unit.cli.test_showing import Said, Terminal


def test_lines_and_tokens_are_counted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [b'{"prompt": "the "}', b'{"prompt": ""}', b'{"prompt": "so "}', b"{"]
    said = Said()
    with forerun.LLM.load("toy", draft="none") as llm:
        batch = Batch(llm, {"max_tokens": 2}, parse(lines), Output(), said)
        assert batch.run(1) == 1
    counts = [text.rpartition(", ")[0] for text in said.texts if text]
    assert counts == [
        "1 of 4 lines done, 0 tokens",
        "1 of 4 lines done, 1 token",
        "2 of 4 lines done, 2 tokens",
        "3 of 4 lines done, 3 tokens",
        "4 of 4 lines done, 4 tokens",
    ]
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 4
    assert shown.err.splitlines()[-1].endswith("; 2 lines failed")


def test_the_line_is_away_while_an_answer_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    said, screen = Said(), Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    write = Output.json

    def written(out: Output, data: dict[str, object]) -> None:
        assert said.texts[-1] == ""
        write(out, data)

    monkeypatch.setattr(Output, "json", written)
    with forerun.LLM.load("toy") as llm:
        assert Batch(llm, {"max_tokens": 2}, parse([b'{"prompt": "the "}'] * 3), Output(), said, quiet=True).run(2) == 0
    assert [json.loads(line)["finish_reason"] for line in screen.getvalue().splitlines()] == ["length"] * 3
