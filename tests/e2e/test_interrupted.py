"""Ctrl-C, closed pipes and full disks: what there is gets printed, and the exit status says what happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.interrupting import interrupt

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and pipes")

GENERATE = ("generate", "--backend", "toy", "--draft", "none", "--ignore-eos", "--max-tokens", "4000")
# The forerun command, with a real SIGINT in the middle of the toy's tenth pass.
INTERRUPTED = "from tests.interrupting import interrupt; interrupt(10); from forerun.cli import main; main()"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def interrupt_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Make a real SIGINT arrive in the middle of the toy's n-th pass from now; see `interrupt`."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda *given: interrupt(*given, patch=monkeypatch.setattr)
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_prints_what_there_is() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *GENERATE, "the target "],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 130, done.stderr
    assert done.stdout == "reads aga\n"
    assert done.stderr.startswith("forerun: 9 tokens, ")
    assert done.stderr.endswith("; interrupted\n")
    assert done.stderr.count("\n") == 1


def test_ctrl_c_with_json_prints_the_object(cli: Cli, interrupt_at: Callable[..., None]) -> None:
    interrupt_at(10)
    ran = cli(*GENERATE, "the target ", "--json")
    assert ran.status == 130
    assert (ran.json["finish_reason"], ran.json["text"]) == ("abort", "reads aga")


def test_ctrl_c_keeps_the_lines_of_a_prompts_file(cli: Cli, tmp_path: Path, interrupt_at: Callable[..., None]) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(f'{{"id": {i}, "prompt": "the target "}}\n' for i in range(5)))
    # Two at a time, six passes each: the first pair is done, the second in the middle, the last never asked. Each of a pair
    # may begin a pass before the other or after it.
    interrupt_at(10, 2)
    ran = cli(*GENERATE, "--prompts", str(path), "--stop", " ", "--concurrency", "2")
    assert ran.status == 130
    assert [(row["id"], row["finish_reason"]) for row in ran.rows] == [
        (0, "stop"), (1, "stop"), (2, "abort"), (3, "abort"),
    ]  # fmt: skip
    assert [row["text"] for row in ran.rows[:2]] == ["reads", "reads"]
    assert all(row["text"] in ("re", "rea", "read") for row in ran.rows[2:])


def test_ctrl_c_before_the_first_token_prints_no_answer(cli: Cli, interrupt_at: Callable[..., None]) -> None:
    interrupt_at(1)
    ran = cli(*GENERATE, "the target ")
    assert (ran.status, ran.out) == (130, "\n")
    assert "0 tokens" in ran.err


@pytest.mark.usefixtures("chatting_toy")
def test_ctrl_c_stops_an_answer_but_not_the_chat(cli: Cli, interrupt_at: Callable[..., None]) -> None:
    interrupt_at(4)
    ran = cli("chat", "--backend", "toy", "--draft", "none", "--max-tokens", "20", stdin="hello\n/reset\nhello\n")
    assert ran.status == 0
    stopped, whole = ran.out.splitlines()
    assert len(stopped) == 3
    assert whole.startswith(stopped)
    assert len(whole) == 20


def test_ctrl_c_while_loading_leaves_nothing_behind(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("forerun.llm.build", interrupted)
    out = tmp_path / "answer.txt"
    ran = cli(*GENERATE, "hello", "--output", str(out))
    assert (ran.status, ran.out) == (130, "")
    assert ran.err.count("\n") == 1
    assert "interrupted" in ran.err
    assert not out.exists()


def test_a_closed_pipe_ends_quietly() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "forerun.cli", *GENERATE, "the target "],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        assert process.stdout.read(5) == b"reads"
        process.stdout.close()
        assert process.wait(timeout=120) == 141
        assert process.stderr.read() == b""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [("generate", "hello", "--backend", "toy"), ("models",)], ids=["text", "table"])
def test_a_full_disk_behind_standard_output_is_one_line(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "forerun.cli", *arguments]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120
        )
    assert done.returncode == 1
    assert done.stderr.startswith("forerun: ")
    assert done.stderr.count("\n") == 1
    assert "no space left" in done.stderr
