"""A model that writes: `LLM.load`, then `generate`, `stream` or `generate_all`.

    llm = forerun.LLM.load("smollm2-135m", draft="ngram")
    print(llm.generate("Why is the sky blue?", max_tokens=64).text)

One generator of rounds serves all three. An LLM is used from one thread at a time.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from forerun.assembly import Assembly, build
from forerun.completion import Chunk, Completion, Timings, Usage
from forerun.config import Config
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.core.step import StepResult
from forerun.errors import PromptError, SamplingError
from forerun.text.chat import prompt_ids
from forerun.text.stream import TextStream

Message = Mapping[str, Any]
Prompt = str | Sequence[Message]


class Job:
    """One request on its way: the tokens, the text made of them, the clock, and the trace where one was asked for."""

    def __init__(self, assembly: Assembly, request: Request, text: TextStream, load_s: float, trace: bool) -> None:
        self.request = request
        self._assembly = assembly
        self._text = text
        self._load_s = load_s
        self._rounds: list[dict[str, Any]] | None = [] if trace else None
        self._asked = time.perf_counter()
        self._first: float | None = None
        self._first_tokens = 0
        self._last = self._asked

    def observe(self, result: StepResult) -> Chunk:
        """Take in one round of this request."""
        self._last = time.perf_counter()
        if result.tokens and self._first is None:
            self._first, self._first_tokens = self._last, len(result.tokens)
        if self._rounds is not None:
            self._rounds.append(result.trace())
        if self.request.finished:
            self._text.finish()
        pieces = self._text.take()
        return Chunk("".join(pieces), result.tokens, tuple(result.accepted_flags()), tuple(pieces))

    def completion(self) -> Completion:
        """The answer so far; `finish_reason` is `abort` for one that was not ended by the model or a limit."""
        request, assembly = self.request, self._assembly
        self._text.finish()
        return Completion(
            text=self._text.text,
            token_ids=request.output,
            finish_reason=request.finish_reason or "abort",
            usage=Usage(len(request.prompt), request.generated),
            model=assembly.model,
            draft=assembly.draft,
            verifier=assembly.verifier,
            backend=assembly.backend,
            seed=request.seed,
            timings=self._timings(),
            stats=request.stats,
            logprobs=request.logprobs if request.sampling.logprobs is not None else None,
            rounds=self._rounds,
            error=None if request.error is None else str(request.error),
            lossy=assembly.lossy,
        )

    def _timings(self) -> Timings:
        first = self._last if self._first is None else self._first
        decode = self._last - first
        later = self.request.generated - self._first_tokens
        whole = self.request.generated / max(self._last - self._asked, 1e-9)
        stats = self.request.stats
        return Timings(
            load_s=self._load_s,
            ttft_s=first - self._asked,
            decode_s=decode,
            tokens_per_second=later / decode if later and decode > 0 else whole,
            draft_s=stats.draft_s,
            verify_s=stats.verify_s,
            other_s=stats.other_s,
        )


class Stream(Iterator[Chunk]):
    """Chunks of one answer as they are made. `completion` is the answer so far, at any time, also after Ctrl-C."""

    def __init__(self, llm: LLM, job: Job) -> None:
        self._job = job
        self._chunks = llm.run(iter([job]), 1)

    def __next__(self) -> Chunk:
        return next(self._chunks)[1]

    @property
    def completion(self) -> Completion:
        return self._job.completion()

    def close(self) -> None:
        """Stop writing; the model can be used again at once."""
        self._chunks.close()


class LLM:
    """A target with its drafter, verifier and controller, ready to write."""

    def __init__(self, assembly: Assembly, load_s: float = 0.0) -> None:
        self.assembly = assembly
        self._load_s = load_s

    @classmethod
    def load(cls, model: str | None = None, **options: Any) -> Self:
        """Build from names; see `build.Config` for the options (draft, backend, verifier, ...).

        Raises ModelError, CompositionError or FetchError, each saying what to do.
        """
        started = time.perf_counter()
        config = Config(**options) if model is None else Config(model=model, **options)
        return cls(build(config), time.perf_counter() - started)

    def generate(self, prompt: Prompt, **options: Any) -> Completion:
        """Answer one prompt: a string, or a list of chat messages.

        options: see `job`. Raises PromptError or SamplingError; a broken model raises BackendError.
        """
        stream = self.stream(prompt, **options)
        for _ in stream:
            pass
        error = stream._job.request.error
        if error is not None:
            raise error
        return stream.completion

    def stream(self, prompt: Prompt, **options: Any) -> Stream:
        """The same, as chunks while the text is being written."""
        return Stream(self, self.job(prompt, **options))

    def chat(self, messages: Sequence[Message], **sampling: Any) -> Completion:
        """Answer a conversation. Turn by turn, only what is new is read."""
        return self.generate(messages, **sampling)

    def generate_all(
        self, prompts: Iterable[Prompt], *, concurrency: int | None = None, **options: Any
    ) -> Iterator[Completion]:
        """Answer many prompts, several at a time, in order, each as soon as it and those before it are done.

        concurrency: at most how many at once (default: as many as the engine runs). options: see `job`. A
        request that fails alone yields a completion with finish reason `error`.
        """
        jobs = (self.job(prompt, **options) for prompt in prompts)
        yield from self.run_all(jobs, concurrency)

    def run_all(self, jobs: Iterator[Job], concurrency: int | None = None) -> Iterator[Completion]:
        """Run prepared jobs; see `generate_all`."""
        order: deque[Job] = deque()

        def remembered() -> Iterator[Job]:
            for job in jobs:
                order.append(job)
                yield job

        for _ in self.run(remembered(), concurrency or self.assembly.max_sequences):
            while order and order[0].request.finished:
                yield order.popleft().completion()
        while order:
            yield order.popleft().completion()

    def job(
        self,
        prompt: Prompt,
        *,
        system: str | None = None,
        raw: bool = False,
        trace: bool = False,
        prediction: str | None = None,
        **sampling: Any,
    ) -> Job:
        """Check a prompt and its parameters and make it ready to run. Nothing is computed yet.

        system: a system message in front. raw: feed the string as it is, without the chat template. trace: note what each
        round drafted and kept. prediction: text that the answer is expected to be like, for the drafter of that name; it
        changes no answer. sampling: see `Sampling`. Raises PromptError or SamplingError.
        """
        unknown = sorted(set(sampling) - set(Sampling.names()))
        if unknown:
            raise SamplingError(f"unknown parameter {unknown[0]!r}; known: {', '.join(Sampling.names())}.")
        chosen = Sampling(**sampling)
        tokens = self.encode(prompt, system=system, raw=raw)
        ends = frozenset(chosen.stop_token_ids)
        if not chosen.ignore_eos:
            ends |= frozenset(self.assembly.tokenizer.eos_ids)
        text = TextStream(self.assembly.tokenizer, chosen.stop, ends)
        seed = secrets.randbits(53) if chosen.seed is None else chosen.seed
        if prediction is not None and not isinstance(prediction, str):
            raise PromptError(f"the prediction is {type(prediction).__name__}; give the text that is expected back.")
        if prediction is not None and not self.assembly.predicts:
            raise PromptError(
                f"the draft {self.assembly.draft} looks at no prediction; add the drafter of that name (such as "
                "prediction+suffix), or leave the prediction out."
            )
        expected = self.assembly.tokenizer.encode(prediction, add_bos=False) if prediction else ()
        request = Request(tokens, chosen, seed=seed, stop_ids=ends, watcher=text, prediction=expected)
        self.assembly.engine.check(request)
        return Job(self.assembly, request, text, self._load_s, trace)

    def encode(self, prompt: Prompt, *, system: str | None = None, raw: bool = False) -> list[int]:
        """Token ids of a prompt as the model will read it."""
        if isinstance(prompt, str) and not prompt.strip():
            raise PromptError("the prompt is empty; give some text (or - to read it from standard input).")
        tokenizer, template = self.assembly.tokenizer, self.assembly.template
        if isinstance(prompt, str) and (raw or (template is None and system is None)):
            return tokenizer.encode(prompt)
        if raw:
            raise PromptError("raw takes a string, not chat messages; leave raw out or join the messages yourself.")
        messages: list[Message] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        return prompt_ids(tokenizer, messages, template=template)

    def close(self) -> None:
        """Release the models."""
        self.assembly.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, jobs: Iterator[Job | None], concurrency: int) -> Generator[tuple[Job, Chunk], None, None]:
        """Rounds until all jobs have ended: each job's chunk after each of its rounds.

        jobs: asked for the next one whenever there is room; None says that none is ready before a running one has ended
        (the next turn of a conversation). Leaving early (an exception, a closed generator) aborts what still runs.
        """
        engine = self.assembly.engine
        running: dict[int, Job] = {}
        try:
            while True:
                while len(running) < concurrency and (job := next(jobs, None)) is not None:
                    running[id(job.request)] = job
                    engine.add(job.request)
                if not running:
                    return
                for result in engine.step():
                    job = running[id(result.request)]
                    yield job, job.observe(result)
                running = {key: job for key, job in running.items() if not job.request.finished}
        finally:
            for job in running.values():
                engine.abort(job.request)
