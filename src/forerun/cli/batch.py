"""`forerun generate --prompts`: many prompts, several at a time, answers in order as each is finished."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerun.answer import Answer
from forerun.cli import parameters, prompts
from forerun.cli.activity import Activity
from forerun.cli.output import Output, complain, note
from forerun.cli.prompts import Question
from forerun.cli.status import FAILED, INTERRUPTED
from forerun.cli.summary import count, given_up, speculation
from forerun.core.stats import Stats
from forerun.errors import ForerunError, UsageError

if TYPE_CHECKING:
    from forerun.cascade.verdict import LossyStats
    from forerun.llm import LLM


def answer_file(
    path: Path, params: Mapping[str, Any], asked: Mapping[str, Any], concurrency: int | None, output: Path | None
) -> int:
    """Write one JSON line for each line of `path`. The exit status is 1 when any of them failed.

    concurrency: prompts in the same pass (default 1). Raises what reading the file or loading the model raises.
    """
    width = 1 if concurrency is None else concurrency
    if width < 1:
        raise UsageError(f"--concurrency is {width}; it must be at least 1.")
    questions = prompts.read(path)
    for question in questions:
        if question.error is not None:
            complain(f"{path} line {question.line}: {question.error}")
    quiet = bool(params.get("quiet"))
    if all(question.done for question in questions):
        with Output(output) as out:
            Batch(None, asked, questions, out, Activity(quiet)).emit()
        return FAILED
    with parameters.load(params, max_sequences=width) as llm, Output(output) as out, Activity(quiet) as activity:
        return Batch(llm, asked, questions, out, activity, quiet).run(width)


class Batch:
    """Questions on their way through one model. A line is written when it and those before it are done."""

    def __init__(
        self,
        llm: LLM | None,
        asked: Mapping[str, Any],
        questions: list[Question],
        out: Output,
        activity: Activity,
        quiet: bool = False,
    ) -> None:
        self._llm = llm
        self._asked = asked
        self._questions = questions
        self._out = out
        self._activity = activity
        self._quiet = quiet
        self._written = 0
        self._unwritten = deque(questions)
        self._ready = deque(question for question in questions if not question.done)
        self._running: dict[Answer, Question] = {}
        self._stats = Stats()
        self._given_up: LossyStats | None = None
        self._failed = sum(question.error is not None for question in questions)

    def run(self, width: int) -> int:
        """Answer everything and return the exit status; after Ctrl-C what there is gets written."""
        assert self._llm is not None, "only a batch of malformed lines has no model"
        started, interrupted = time.perf_counter(), False
        self._say(0.0)
        try:
            for answer, chunk in self._llm.run(self._requests(), width):
                self._written += len(chunk.token_ids)
                if chunk.finish_reason is not None:
                    self._settle(answer)
                    self.emit()
                self._say(time.perf_counter() - started)
        except KeyboardInterrupt:
            interrupted = True
            for answer in list(self._running):
                self._settle(answer)
        self.emit(skip_unasked=interrupted)
        self._activity.clear()
        if not self._quiet:
            self._summarize(time.perf_counter() - started)
        if interrupted:
            return INTERRUPTED
        return FAILED if self._failed else 0

    def emit(self, skip_unasked: bool = False) -> None:
        """Write the lines whose turn it is."""
        while self._unwritten and (self._unwritten[0].done or skip_unasked):
            question = self._unwritten.popleft()
            if question.done and self._out.terminal:
                with self._activity.paused():
                    self._out.json(question.row())
            elif question.done:
                self._out.json(question.row())

    def _requests(self) -> Iterator[Answer | None]:
        """The next thing to ask: a conversation's next turn, or a new line; None while answers are awaited."""
        assert self._llm is not None, "only a batch of malformed lines has no model"
        while self._ready or self._running:
            if not self._ready:
                yield None
                continue
            question = self._ready.popleft()
            try:
                request = self._llm.ask(question.prompt(), **dict(self._asked) | question.options)
            except ForerunError as error:
                self._fail(question, str(error))
                continue
            answer = Answer(self._llm.assembly, request, self._llm.load_s)
            self._running[answer] = question
            yield answer

    def _settle(self, answer: Answer) -> None:
        question, completion = self._running.pop(answer), answer.completion()
        self._stats.merge(completion.stats)
        if completion.cascade is not None:
            from forerun.cascade.verdict import LossyStats

            self._given_up = self._given_up or LossyStats()
            self._given_up.merge(completion.cascade)
        if completion.error is not None:
            self._fail(question, completion.error)
            return
        question.answers.append(completion.as_dict())
        if completion.finish_reason == "abort":
            question.turns = question.turns[: len(question.answers)]
        elif not question.done:
            # The conversation goes on before new ones start, so that lines come out early.
            self._ready.appendleft(question)

    def _fail(self, question: Question, error: str) -> None:
        question.error = error
        self._failed += 1
        with self._activity.paused():
            complain(f"line {question.line}: {error}")

    def _say(self, seconds: float) -> None:
        """How far it is, while there is something to wait for."""
        done = sum(question.done for question in self._questions)
        speed = self._written / max(seconds, 1e-9)
        self._activity.say(
            f"{done:,} of {count(len(self._questions), 'line')} done, {count(self._written, 'token')}, {speed:.1f} tokens/s"
        )

    def _summarize(self, seconds: float) -> None:
        assert self._llm is not None, "only a batch of malformed lines has no model"
        tokens = self._stats.tokens
        line = f"{count(tokens, 'token')} in {seconds:.1f} s, {tokens / max(seconds, 1e-9):.1f} tokens/s, "
        line += speculation(self._stats, self._llm.assembly.draft)
        if self._given_up is not None:
            line += f"; {given_up(self._given_up.as_dict(self._llm.assembly.lossy))}"
        note(f"forerun: {line}" + (f"; {count(self._failed, 'line')} failed" if self._failed else ""))
