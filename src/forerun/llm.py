"""A model that writes: `LLM.load`, then `generate`, `stream` or `generate_all`, or the same with `await`.

    llm = forerun.LLM.load("smollm2-135m")
    print(llm.generate("Why is the sky blue?", max_tokens=64).text)

The model runs on a thread of its own (engine.worker), so one LLM may be used from several threads and tasks at once; their
requests share its passes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack

from forerun.answer import Answer, Asked, Stream, refused
from forerun.asking import AskOptions, Message, Prompt, asked, encode
from forerun.assembly import Assembly, build
from forerun.completion import Chunk, Completion
from forerun.config import Config
from forerun.core.step import StepResult
from forerun.engine.worker import Ticket, Worker
from forerun.errors import PromptError, UsageError, quoted, unknown

if TYPE_CHECKING:
    from forerun.core.protocols import Controller, Drafter, Verifier
    from forerun.drafters.plugins import Factory
    from forerun.models.progress import Progress

__all__ = ["LLM", "Message", "Prompt", "Stream"]


class LoadOptions(TypedDict, total=False):
    """The fields of `config.Config` beside the model; None is the default of any of them."""

    draft: str | Drafter | Factory | None
    other_drafts: Sequence[str] | None
    backend: str | None
    verifier: str | Verifier | None
    cascade: str | None
    controller: str | Controller | None
    num_speculative_tokens: int | None
    prompt_lookup_min: int | None
    prompt_lookup_max: int | None
    max_sequences: int | None
    keep_prefixes: int | None
    prefill_slowdown: float | None
    threads: int | None
    context: int | None
    kv_dtype: Literal["fp16", "fp32"] | None
    kv_memory: int | None
    quantize: Literal["w8", "w4"] | None
    memory: str | Path | None
    remember: str | None
    progress: Progress | None


class LLM:
    """A target with its drafters, verifiers and controller, ready to write."""

    def __init__(self, assembly: Assembly, load_s: float = 0.0) -> None:
        self.assembly = assembly
        self.worker = Worker(assembly.engine)
        self.load_s = load_s

    @classmethod
    def load(cls, model: str | Path | None = None, **options: Unpack[LoadOptions]) -> Self:
        """Build from names; see `config.Config` for the options.

        Raises UsageError, ModelError, CompositionError or FetchError, each saying what to do.
        """
        started = time.perf_counter()
        known = [field.name for field in fields(Config)]
        if wrong := sorted(options.keys() - set(known)):
            raise unknown("option", wrong[0], known)
        given: dict[str, Any] = dict(options) if model is None else {"model": model, **options}
        return cls(build(Config(**given)), time.perf_counter() - started)

    def generate(self, prompt: Prompt, **options: Unpack[AskOptions]) -> Completion:
        """Answer one prompt: text, a list of chat messages, or a list of token ids, which are read as they are.

        Raises PromptError, SamplingError or UsageError; a broken model raises BackendError.
        """
        stream = self.stream(prompt, **options)
        try:
            stream.answer.finished.wait()
        finally:
            stream.close()
        return _done(stream.answer)

    def stream(self, prompt: Prompt, **options: Unpack[AskOptions]) -> Stream:
        """The same, as chunks while the text is being written."""
        return self.open_stream(self.ask(prompt, **options))

    def open_stream(self, request: Asked) -> Stream:
        """Start a request that was checked before."""
        return Stream(self.worker, self.assembly, request, self.load_s)

    def chat(self, messages: Sequence[Message], **options: Unpack[AskOptions]) -> Completion:
        """Answer a conversation. Turn by turn, only what is new is read."""
        return self.generate(messages, **options)

    async def generate_async(self, prompt: Prompt, **options: Unpack[AskOptions]) -> Completion:
        """`generate` for tasks of an event loop. A cancelled task ends its answer."""
        stream = self.stream_async(prompt, **options)
        async for _ in stream:
            pass
        return _done(stream.answer)

    def stream_async(self, prompt: Prompt, **options: Unpack[AskOptions]) -> AsyncStream:
        """`stream` for tasks of an event loop."""
        return AsyncStream(self.worker, self.assembly, self.ask(prompt, **options), self.load_s)

    def generate_all(
        self, prompts: Iterable[Prompt], *, concurrency: int | None = None, **options: Unpack[AskOptions]
    ) -> Iterator[Completion]:
        """Answer many prompts, several at a time, in order, each as soon as it and those before it are done.

        concurrency: at most how many at once (default: as many as the engine runs).

        A prompt that cannot be asked, or a request that fails alone, yields a completion with finish reason `error`, and
        the others go on. Raises SamplingError for options that no prompt could be asked with, UsageError for a constraint,
        which can follow one text only.
        """
        most = self.assembly.max_sequences if concurrency is None else concurrency
        if not isinstance(most, int) or most < 1:
            raise UsageError(f"concurrency is {quoted(most)}; it must be a whole number, at least 1.")
        if isinstance(prompts, str):
            raise PromptError("generate_all takes many prompts, and this is one text; put it into a list.")
        if options.get("constraint") is not None:
            raise UsageError("a constraint follows one text only; ask each prompt with one of its own (generate).")
        order: deque[Answer | Completion] = deque()

        def requests() -> Iterator[Answer]:
            for prompt in prompts:
                try:
                    request = self.ask(prompt, **options)
                except PromptError as error:
                    order.append(refused(self.assembly, error=str(error)))
                    continue
                answer = Answer(self.assembly, request, self.load_s)
                order.append(answer)
                yield answer

        for _ in self.run(requests(), most):
            while order and (done := _completed(order[0])) is not None:
                order.popleft()
                yield done
        for left in order:
            yield left.completion() if isinstance(left, Answer) else left

    def ask(self, prompt: Prompt, **options: Unpack[AskOptions]) -> Asked:
        """Check a prompt and its options and make them ready to run. Nothing is computed yet.

        Raises PromptError, SamplingError or UsageError.
        """
        return asked(self.assembly, prompt, **options)

    def encode(
        self, prompt: Prompt, *, system: str | None = None, raw: bool = False, special: bool = False
    ) -> list[int]:
        """Token ids of a prompt as the model will read it. Raises PromptError."""
        return encode(self.assembly, prompt, system=system, raw=raw, special=special)

    def run(self, answers: Iterator[Answer | None], concurrency: int) -> Generator[tuple[Answer, Chunk], None, None]:
        """Steps until all answers have ended: each answer's chunk after each of its steps.

        answers: asked for the next one whenever there is room; None says that none is ready before a running one has ended
        (the next turn of a conversation). Leaving early (an exception, a closed generator) ends what still runs.
        """
        chunks: SimpleQueue[tuple[Answer, Chunk, bool]] = SimpleQueue()
        running: dict[Answer, Ticket] = {}
        try:
            while True:
                while len(running) < concurrency and (answer := next(answers, None)) is not None:
                    running[answer] = self._submit(answer, chunks)
                if not running:
                    return
                answer, chunk, last = chunks.get()
                if last:
                    del running[answer]
                yield answer, chunk
        finally:
            for ticket in running.values():
                ticket.cancel()
            for answer in running if self.worker.is_here else ():
                answer.finished.wait()

    def close(self) -> None:
        """Release the models. Answers that are being written end."""
        self.worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _submit(self, answer: Answer, chunks: SimpleQueue[tuple[Answer, Chunk, bool]]) -> Ticket:
        def take(result: StepResult) -> None:
            chunk = Chunk("")
            try:
                chunk = answer.observe(result)
            finally:
                chunks.put((answer, chunk, answer.finished.is_set()))

        return self.worker.submit(answer.request, take, answer.text, answer.constraint)


class AsyncStream(AsyncIterator[Chunk]):
    """Chunks of one answer as they are made, for tasks of an event loop."""

    def __init__(self, worker: Worker, assembly: Assembly, request: Asked, load_s: float) -> None:
        self.answer = answer = Answer(assembly, request, load_s)
        self._worker = worker  # which ends when nobody holds it
        self._chunks: asyncio.Queue[Chunk | None] = asyncio.Queue()
        loop, put = asyncio.get_running_loop(), self._chunks.put_nowait

        # Holds no reference to the stream, so that one which is forgotten can end its answer.
        def take(result: StepResult) -> None:
            try:
                loop.call_soon_threadsafe(put, answer.observe(result))
            finally:
                if answer.finished.is_set():
                    loop.call_soon_threadsafe(put, None)

        self._ticket = worker.submit(request.request, take, request.text, request.constraint)

    async def __anext__(self) -> Chunk:
        try:
            chunk = await self._chunks.get()
        except asyncio.CancelledError:
            self.close()
            raise
        if chunk is None:
            self._chunks.put_nowait(None)  # so that asking again ends at once too
            raise StopAsyncIteration
        return chunk

    @property
    def completion(self) -> Completion:
        """The answer so far."""
        return self.answer.completion()

    def close(self) -> None:
        """End the answer; its place is free within a step."""
        if not self.answer.finished.is_set():
            self._ticket.cancel()

    def __del__(self) -> None:
        if hasattr(self, "_ticket"):
            self.close()


def _completed(answer: Answer | Completion) -> Completion | None:
    """The completion, once there is one."""
    if isinstance(answer, Completion):
        return answer
    return answer.completion() if answer.finished.is_set() else None


def _done(answer: Answer) -> Completion:
    """The completion of an answer that has ended. Raises what ended it."""
    if answer.error is not None:
        raise answer.error
    return answer.completion()
