"""Standard streams that are missing, closed or of another encoding: the right status, and nothing in a wrong stream."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX descriptors")

FORERUN = f"{sys.executable} -m forerun.cli"
ASK = f"{FORERUN} generate 'the target ' --backend toy --max-tokens 12 --draft none"


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | environment,
    )


def test_without_stderr_the_summary_is_nowhere() -> None:
    done = shell(f"{ASK} --json 2>&-")
    assert done.returncode == 0
    assert json.loads(done.stdout)["text"] == "reads again,"


def test_without_stderr_no_file_takes_its_place(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = shell(f"{ASK} --output {out} 2>&-")
    assert (done.returncode, done.stdout, out.read_text()) == (0, "", "reads again,\n")
    done = shell(f"{ASK} --output {out} --top-p 7 2>&-")
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("missing", [">&-", "<&- >&-"])
def test_without_stdout_only_the_summary_is_left(missing: str) -> None:
    done = shell(f"{ASK} {missing}")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("forerun: 12 tokens, ")
    assert done.stderr.count("\n") == 1


def test_without_stdin_there_is_nothing_to_read() -> None:
    assert shell(f"{ASK} <&-").stdout == "reads again,\n"
    done = shell(f"{FORERUN} generate - --backend toy <&-")
    assert (done.returncode, done.stderr) == (2, "forerun: the prompt is empty; give some text.\n")
    done = shell(f"{FORERUN} generate --prompts - --backend toy <&-")
    assert done.returncode == 2
    assert "holds no prompts" in done.stderr


@pytest.mark.parametrize("command", ["models", "--version", "generate --help", "generate x --backend toy"])
def test_without_any_stream_the_status_is_still_right(command: str) -> None:
    assert shell(f"{FORERUN} {command} <&- >&- 2>&-").returncode == 0
    assert shell(f"{FORERUN} {command} --no-such-option <&- >&- 2>&-").returncode == 2


def test_an_argument_is_utf8_whatever_the_locale_says() -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = shell(f"{FORERUN} generate 'caf\u00e9' --backend toy --max-tokens 3 --json", **ascii_only)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["usage"]["prompt_tokens"] == len("caf\u00e9".encode())
    assert "surrog" not in done.stderr


def test_a_pipe_that_nobody_writes_to_or_closes_is_named() -> None:
    command = [sys.executable, "-m", "forerun", "generate", "the target ", "--backend", "toy", "--max-tokens", "3"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        assert "waiting for standard input" in process.stderr.readline()
        process.stdin.close()
        assert process.wait(timeout=120) == 0


def test_completions_for_a_shell() -> None:
    done = shell(FORERUN, _FORERUN_COMPLETE="complete_bash", COMP_WORDS="forerun gen", COMP_CWORD="1")
    assert (done.returncode, done.stdout.split()) == (0, ["generate"])
    done = shell(f"{FORERUN} --show-completion bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert done.returncode == 0
    assert "_FORERUN_COMPLETE" in done.stdout
