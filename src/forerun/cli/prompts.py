"""Prompt files: JSON lines with `prompt`, `turns` or `messages`, and what is asked of each (Spec-Bench's format and more)."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forerun.cli.files import reading
from forerun.cli.json_text import parse as parse_json
from forerun.cli.parameters import sampling_of
from forerun.core.sampling import Sampling
from forerun.errors import UsageError, unknown

ASKED = ("prompt", "turns", "messages")
# Nothing is done with these; they are repeated with the answer.
LABELS = ("id", "question_id", "category", "source", "answer", "reference")
KNOWN = (*ASKED, "system", "prediction", *Sampling.names(), *LABELS)


@dataclass
class Question:
    """One line of a prompts file. `error` says what is wrong with it, or what went wrong with its answer.

    turns: what the user says, one after the other: texts, or a single list of token ids. messages: a conversation to go
    on with, in place of turns. options: what `LLM.job` is asked with for this line. labels: repeated with the answer.
    answers: one object per turn answered, as `forerun generate --json` prints it.
    """

    line: int
    turns: tuple[str | list[int], ...] = ()
    messages: list[dict[str, Any]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, Any] = field(default_factory=dict)
    answers: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None

    @property
    def done(self) -> bool:
        return self.error is not None or len(self.answers) == max(1, len(self.turns))

    def prompt(self) -> str | list[int] | list[dict[str, Any]]:
        """What to ask now: the next turn, with the conversation so far where there are several turns."""
        if not self.turns:
            return self.messages
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
        return self.labels | (self.answers[0] if len(self.turns) < 2 else {"turns": self.answers})


def read(path: Path) -> list[Question]:
    """The questions of a file (`-`: standard input), malformed lines among them; blank lines are skipped.

    Raises UsageError when the file cannot be read or holds nothing.
    """
    with reading(path):
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    questions = parse(data.removeprefix(codecs.BOM_UTF8).split(b"\n"))
    if not questions:
        raise UsageError(f'{path} holds no prompts; write one JSON object a line, such as {{"prompt": "Hello"}}.')
    return questions


def first_turns(path: Path) -> list[tuple[str, Question]]:
    """The first text of each line, for commands that ask all prompts in the same way.

    Raises UsageError for a malformed line, and for one that wants to be asked in a way of its own.
    """
    chosen = []
    for question in read(path):
        wrong = question.error
        if wrong is None and question.options:
            wrong = f"{next(iter(question.options))} is for forerun generate; here all lines are asked alike"
        text = question.turns[0] if question.turns else None
        if wrong is None and not isinstance(text, str):
            wrong = "give prompt or turns as text"
        if wrong is not None or not isinstance(text, str):
            raise UsageError(f"{path}, line {question.line}: {str(wrong).rstrip('.')}.")
        chosen.append((text, question))
    return chosen


def parse(lines: Iterable[bytes]) -> list[Question]:
    """Questions from the lines of a file."""
    return [_question(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _question(number: int, line: bytes) -> Question:
    labels: dict[str, Any] = {}
    try:
        entry = parse_json(line.decode("utf-8"))
        if not isinstance(entry, dict):
            return Question(number, error="not a JSON object")
        labels = {key: value for key, value in entry.items() if key in LABELS and _is_label(value)}
        given = {key: value for key, value in entry.items() if value is not None}
        for key in given:
            if key not in KNOWN:
                raise unknown("key", key, KNOWN)
            if key in LABELS and key not in labels:
                raise UsageError(f"{key} must be text, a number, or a list of these")
        return Question(number, *_asked(given), _options(given), labels)
    except UnicodeDecodeError:
        return Question(number, error="not UTF-8 text")
    except UsageError as error:
        return Question(number, labels=labels, error=str(error))
    except ValueError as error:
        return Question(number, error=f"not JSON ({error})")


def _asked(entry: Mapping[str, Any]) -> tuple[tuple[str | list[int], ...], list[dict[str, Any]]]:
    """Turns and messages of a line. Raises UsageError."""
    given = [key for key in ASKED if key in entry]
    if len(given) != 1:
        raise UsageError("give either prompt or turns or messages")
    asked = entry[given[0]]
    if given[0] == "prompt":
        if isinstance(asked, str) or (isinstance(asked, list) and asked and all(type(each) is int for each in asked)):
            return (asked,), []
        raise UsageError("prompt must be text or a list of token ids")
    if given[0] == "turns":
        if isinstance(asked, list) and asked and all(isinstance(turn, str) for turn in asked):
            return tuple(asked), []
        raise UsageError("turns must be a list of at least one text")
    if isinstance(asked, list) and asked and all(isinstance(message, dict) for message in asked):
        return (), asked
    raise UsageError('messages must be a list of objects, such as {"role": "user", "content": "Hello"}')


def _options(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What a line wants to be asked with. Raises UsageError."""
    for key in ("system", "prediction"):
        if not isinstance(entry.get(key, ""), str):
            raise UsageError(f"{key} must be text")
    if "prediction" in entry and "turns" in entry:
        raise UsageError("prediction must be text, and goes with prompt or messages")
    others = {key: entry[key] for key in ("system", "prediction") if key in entry}
    return sampling_of({key: entry[key] for key in Sampling.names() if key in entry}) | others


def _is_label(value: Any) -> bool:
    return not isinstance(value, dict) and not (
        isinstance(value, list) and any(isinstance(each, dict | list) for each in value)
    )
