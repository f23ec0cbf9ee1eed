"""One request on its way from a worker to its caller: the text made of its tokens, the clock, the trace."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from forerun.completion import Chunk, Completion, Timings, Usage
from forerun.core.request import Request
from forerun.core.step import StepResult
from forerun.core.transcript import Constraint
from forerun.engine import Sequence

if TYPE_CHECKING:
    from collections.abc import Callable

    from forerun.assembly import Assembly
    from forerun.cascade.verdict import LossyStats
    from forerun.engine.worker import Ticket, Worker
    from forerun.text.stream import TextStream


@dataclass(frozen=True)
class Asked:
    """A request that was checked, and what turns its tokens into text.

    trace: whether to note what each step did. constraint: what may follow, where not all may.
    """

    request: Request
    text: TextStream
    trace: bool = False
    constraint: Constraint | None = None


class Answer:
    """Folds the steps of one request into chunks and a completion. Steps come in on the engine's thread.

    load_s: seconds that loading took, for the timings.
    """

    def __init__(self, assembly: Assembly, asked: Asked, load_s: float = 0.0) -> None:
        self.request = asked.request
        self.text = asked.text
        self.constraint = asked.constraint
        self._assembly = assembly
        self._load_s = load_s
        self._lock = threading.Lock()
        self._sequence: Sequence | None = None
        self._steps: list[dict[str, Any]] | None = [] if asked.trace else None
        self._lossy: LossyStats | None = _lossy_stats() if assembly.lossy else None
        self._asked = self._last = time.perf_counter()
        self._first: float | None = None
        self._first_tokens = 0
        self._prompt_read = 0
        self.finished = threading.Event()

    @property
    def error(self) -> Exception | None:
        """What ended the request, where it failed."""
        return None if self._sequence is None else self._sequence.error

    @property
    def sequence(self) -> Sequence | None:
        """The run of the request; None before its first step."""
        return self._sequence

    def observe(self, result: StepResult) -> Chunk:
        """Take in one step."""
        assert isinstance(result.sequence, Sequence)
        try:
            return self._observe(result, result.sequence)
        finally:
            # Also when its last step raises, so that nothing waits for another one.
            if result.sequence.finished:
                self.finished.set()

    def _observe(self, result: StepResult, sequence: Sequence) -> Chunk:
        with self._lock:
            self._sequence = sequence
            self._last = time.perf_counter()
            if self._first is None:
                self._prompt_read += len(result.input_tokens)
            if result.tokens and self._first is None:
                self._first, self._first_tokens = self._last, len(result.tokens)
            step = None
            if self._steps is not None:
                step = result.trace()
                self._steps.append(step)
            if self._lossy is not None:
                self._lossy.add(result)
            if sequence.finished:
                self.text.finish()
            pieces = self.text.take()
        return Chunk(
            text="".join(pieces),
            token_ids=result.tokens,
            accepted=tuple(result.accepted_flags()),
            pieces=tuple(pieces),
            logprobs=result.logprobs,
            drafted=len(result.draft),
            step=step,
            finish_reason=sequence.finish_reason,
            prompt_tokens=len(self.request.prompt),
            prompt_tokens_read=self._prompt_read,
        )

    def completion(self) -> Completion:
        """The answer so far; `finish_reason` is `abort` for one that was not ended by the model or a limit."""
        with self._lock:
            return self._completion()

    def _completion(self) -> Completion:
        request, assembly, sequence = self.request, self._assembly, self._sequence
        if sequence is None:
            return refused(assembly, len(request.prompt), seed=request.seed, finish_reason="abort")
        verifier = sequence.verifier.name
        return Completion(
            text=self.text.text,
            token_ids=sequence.output,
            finish_reason=sequence.finish_reason or "abort",
            usage=Usage(len(request.prompt), sequence.generated, sequence.cached),
            model=assembly.model,
            draft=sequence.method or "none",
            verifier=verifier,
            backend=assembly.backend,
            seed=request.seed,
            timings=self._timings(sequence),
            stats=sequence.stats,
            logprobs=sequence.logprobs if request.sampling.logprobs is not None else None,
            prompt_logprobs=sequence.prompt_logprobs if request.prompt_logprobs is not None else None,
            steps=self._steps,
            error=None if sequence.error is None else str(sequence.error),
            lossy="" if self._lossy is None or sequence.verifier.exact else assembly.lossy,
            cascade=None if self._lossy is None or sequence.verifier.exact else self._lossy.as_dict(assembly.lossy),
        )

    def _timings(self, sequence: Sequence) -> Timings:
        first = self._last if self._first is None else self._first
        decode = self._last - first
        later = sequence.generated - self._first_tokens
        whole = sequence.generated / max(self._last - self._asked, 1e-9)
        return Timings(
            load_s=self._load_s,
            ttft_s=first - self._asked,
            decode_s=decode,
            tokens_per_second=later / decode if later and decode > 0 else whole,
            prompt_tokens_per_second=self._prompt_read / max(first - self._asked, 1e-9),
            draft_s=sequence.stats.draft_s,
            verify_s=sequence.stats.verify_s,
            other_s=sequence.stats.other_s,
        )


class Stream(Iterator[Chunk]):
    """Chunks of one answer as they are made. `completion` is the answer so far, at any time, also after Ctrl-C.

    A stream that is left early, or forgotten, ends its answer; others are not disturbed.
    """

    def __init__(self, worker: Worker, assembly: Assembly, asked: Asked, load_s: float = 0.0) -> None:
        self.answer = Answer(assembly, asked, load_s)
        self._worker = worker  # which ends when nobody holds it
        self._chunks: SimpleQueue[Chunk | None] = SimpleQueue()
        self._ended = False
        take = _taking(self.answer, self._chunks.put)
        self._ticket: Ticket = worker.submit(asked.request, take, asked.text, asked.constraint)

    def __next__(self) -> Chunk:
        """Raises BackendError in a fork of the process that opened it."""
        self._worker.check_here()
        chunk = None if self._ended else self._chunks.get()
        if chunk is None:
            self._ended = True
            raise StopIteration
        return chunk

    @property
    def completion(self) -> Completion:
        return self.answer.completion()

    def close(self) -> None:
        """Stop writing; returns when the answer's place is free."""
        self._ended = True
        if self._worker.is_here and not self.answer.finished.is_set():
            self._ticket.cancel()
            self.answer.finished.wait()

    def __del__(self) -> None:
        # A stream that is garbage-collected is not waited for.
        if hasattr(self, "_ticket") and not self.answer.finished.is_set():
            self._ticket.cancel()


def _taking(answer: Answer, put: Callable[[Chunk | None], None]) -> Callable[[StepResult], None]:
    """What a worker calls for each step: the chunk is put where it is waited for, and None after the last."""

    def take(result: StepResult) -> None:
        try:
            put(answer.observe(result))
        finally:
            if answer.finished.is_set():
                put(None)

    return take


def refused(
    assembly: Assembly, prompt_tokens: int = 0, *, seed: int = 0, finish_reason: Any = "error", error: str | None = None
) -> Completion:
    """The completion of a prompt for which nothing was run."""
    return Completion(
        text="",
        token_ids=[],
        finish_reason=finish_reason,
        usage=Usage(prompt_tokens, 0),
        model=assembly.model,
        draft=assembly.draft,
        verifier=assembly.verifier,
        backend=assembly.backend,
        seed=seed,
        error=error,
        lossy=assembly.lossy,
    )


def _lossy_stats() -> LossyStats:
    from forerun.cascade.verdict import LossyStats

    return LossyStats()
