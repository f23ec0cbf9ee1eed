"""Prompt files: JSON lines with `prompt` or `turns`, and `id` and `category` where wanted (Spec-Bench's format)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forerun.cli.files import reading
from forerun.errors import UsageError


@dataclass
class Question:
    """One line of a prompts file. `error` says what is wrong with it, or what went wrong with its answer.

    turns: what the user says, one after the other. prediction: text that the answer is expected to be like.
    labels: the line's `id` and `category`, repeated with the answer. answers: one object per turn answered, as
    `forerun generate --json` prints it.
    """

    line: int
    turns: tuple[str, ...] = ()
    labels: dict[str, Any] = field(default_factory=dict)
    answers: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None
    prediction: str | None = None

    @property
    def done(self) -> bool:
        return self.error is not None or len(self.answers) == len(self.turns)

    def prompt(self) -> str | list[dict[str, str]]:
        """What to ask now: the next turn, with the conversation so far where there are several turns."""
        if len(self.turns) == 1:
            return self.turns[0]
        messages = []
        for turn, answer in zip(self.turns, [*self.answers, None], strict=False):
            messages.append({"role": "user", "content": turn})
            if answer is not None:
                messages.append({"role": "assistant", "content": answer["text"]})
        return messages

    def row(self) -> dict[str, Any]:
        """The line of output: the answer's own fields, or a list of answers where there were several turns."""
        if self.error is not None:
            told: dict[str, Any] = {"turns": self.answers} if self.answers else {}
            return {"line": self.line, **self.labels, "error": self.error, **told}
        return self.labels | (self.answers[0] if len(self.turns) == 1 else {"turns": self.answers})


def read(path: Path) -> list[Question]:
    """The questions of a file (`-`: standard input), malformed lines among them; blank lines are skipped.

    Raises UsageError when the file cannot be read or holds nothing.
    """
    with reading(path):
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    questions = parse(data.split(b"\n"))
    if not questions:
        raise UsageError(f'{path} holds no prompts; write one JSON object a line, such as {{"prompt": "Hello"}}.')
    return questions


def parse(lines: Iterable[bytes]) -> list[Question]:
    """Questions from the lines of a file."""
    return [_question(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _question(number: int, line: bytes) -> Question:
    try:
        entry = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        return Question(number, error="not UTF-8 text")
    except ValueError as error:
        return Question(number, error=f"not JSON ({error})")
    if not isinstance(entry, dict):
        return Question(number, error="not a JSON object")
    labels = {key: entry[key] for key in ("id", "category") if key in entry}
    if ("prompt" in entry) == ("turns" in entry):
        return Question(number, labels=labels, error="give either prompt or turns")
    turns = [entry["prompt"]] if "prompt" in entry else entry["turns"]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        wanted = "prompt must be text" if "prompt" in entry else "turns must be a list of at least one text"
        return Question(number, labels=labels, error=wanted)
    prediction = entry.get("prediction")
    if prediction is not None and ("turns" in entry or not isinstance(prediction, str)):
        return Question(number, labels=labels, error="prediction must be text, and goes with prompt")
    return Question(number, tuple(turns), labels, prediction=prediction)
