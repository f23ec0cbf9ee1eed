"""A model that writes: `LLM.load`, then `generate`, `stream` or `generate_all`.

    llm = forerun.LLM.load("smollm2-135m")
    print(llm.generate("Why is the sky blue?", max_tokens=64).text)

One generator of rounds serves all three. An LLM is used from one thread at a time.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from types import TracebackType
from typing import Any, Self, cast

from forerun.assembly import Assembly, build
from forerun.completion import Chunk, Completion, Timings, Usage
from forerun.config import Config
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.core.step import StepResult
from forerun.errors import PromptError, SamplingError, UsageError, quoted, unknown
from forerun.text.chat import prompt_ids
from forerun.text.stream import TextStream

Message = Mapping[str, Any]
Prompt = str | Sequence[Message] | Sequence[int]


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
        self._prompt_read = 0
        self._last = self._asked

    def observe(self, result: StepResult) -> Chunk:
        """Take in one round of this request."""
        self._last = time.perf_counter()
        if self._first is None:
            self._prompt_read += len(result.input_tokens)
        if result.tokens and self._first is None:
            self._first, self._first_tokens = self._last, len(result.tokens)
        if self._rounds is not None:
            self._rounds.append(result.trace())
        if self.request.finished:
            self._text.finish()
        pieces = self._text.take()
        return Chunk(
            text="".join(pieces),
            token_ids=result.tokens,
            accepted=tuple(result.accepted_flags()),
            pieces=tuple(pieces),
            prompt_tokens=len(self.request.prompt),
            prompt_tokens_read=self._prompt_read,
        )

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
            prompt_tokens_per_second=self._prompt_read / max(first - self._asked, 1e-9),
            draft_s=stats.draft_s,
            verify_s=stats.verify_s,
            other_s=stats.other_s,
        )


def _completed(job: Job | Completion) -> Completion | None:
    """The completion, once there is one."""
    if isinstance(job, Completion):
        return job
    return job.completion() if job.request.finished else None


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
        """Build from names; see `config.Config` for the options (draft, backend, verifier, ...).

        Raises UsageError, ModelError, CompositionError or FetchError, each saying what to do.
        """
        started = time.perf_counter()
        known = [field.name for field in fields(Config)]
        if wrong := sorted(options.keys() - set(known)):
            raise unknown("option", wrong[0], known)
        config = Config(**options) if model is None else Config(model=model, **options)
        return cls(build(config), time.perf_counter() - started)

    def generate(self, prompt: Prompt, **options: Any) -> Completion:
        """Answer one prompt: a string, a list of chat messages, or a list of token ids, which are read as they are.

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

        concurrency: at most how many at once (default: as many as the engine runs). options: see `job`. A prompt that
        cannot be asked, or a request that fails alone, yields a completion with finish reason `error`, and the others go
        on. Raises SamplingError for options that no prompt could be asked with.
        """

        if isinstance(prompts, str):
            raise PromptError("generate_all takes many prompts, and this is one text; put it into a list.")

        def asked(prompt: Prompt) -> Job | Completion:
            try:
                return self.job(prompt, **options)
            except PromptError as error:
                return self._refused(error)

        yield from self.run_all(map(asked, prompts), concurrency)

    def run_all(self, jobs: Iterator[Job | Completion], concurrency: int | None = None) -> Iterator[Completion]:
        """Run prepared jobs, in order; what is a completion already takes its turn among them. See `generate_all`."""
        most = self.assembly.max_sequences if concurrency is None else concurrency
        if not isinstance(most, int) or most < 1:
            raise UsageError(f"concurrency is {quoted(most)}; it must be a whole number, at least 1.")
        order: deque[Job | Completion] = deque()

        def remembered() -> Iterator[Job]:
            for job in jobs:
                order.append(job)
                if isinstance(job, Job):
                    yield job

        for _ in self.run(remembered(), most):
            while order and (done := _completed(order[0])) is not None:
                order.popleft()
                yield done
        for left in order:
            yield left.completion() if isinstance(left, Job) else left

    def _refused(self, error: PromptError) -> Completion:
        """The completion of a prompt that cannot be asked."""
        parts = self.assembly
        return Completion(
            text="",
            token_ids=[],
            finish_reason="error",
            usage=Usage(0, 0),
            model=parts.model,
            draft=parts.draft,
            verifier=parts.verifier,
            backend=parts.backend,
            seed=0,
            error=str(error),
            lossy=parts.lossy,
        )

    def job(
        self,
        prompt: Prompt,
        *,
        system: str | None = None,
        raw: bool = False,
        special: bool = False,
        trace: bool = False,
        prediction: str | None = None,
        **sampling: Any,
    ) -> Job:
        """Check a prompt and its parameters and make it ready to run. Nothing is computed yet.

        system: a system message in front. raw: feed the string as it is, without the chat template. special: the strings
        of control tokens in the prompt are these tokens. trace: note what each round drafted and kept. prediction: text
        that the answer is expected to be like, for the drafter of that name; it changes no answer. sampling: see
        `Sampling`. Raises PromptError or SamplingError.
        """
        if wrong := sorted(set(sampling) - set(Sampling.names())):
            raise SamplingError(f"unknown parameter {wrong[0]!r}; known: {', '.join(Sampling.names())}.")
        chosen = Sampling(**sampling)
        for name, ids in (("logit_bias", chosen.logit_bias), ("stop_token_ids", chosen.stop_token_ids)):
            self._check_ids(name, ids, SamplingError)
        tokens = self.encode(prompt, system=system, raw=raw, special=special)
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

    def encode(
        self, prompt: Prompt, *, system: str | None = None, raw: bool = False, special: bool = False
    ) -> list[int]:
        """Token ids of a prompt as the model will read it; see `job`. Raises PromptError."""
        tokenizer, template = self.assembly.tokenizer, self.assembly.template
        if raw and system is not None:
            raise PromptError("raw text has no place for a system message; leave one of the two out.")
        if isinstance(prompt, str):
            if raw and not prompt and tokenizer.bos_id is not None:
                return [tokenizer.bos_id]
            if not (prompt if raw else prompt.strip()):
                raise PromptError("the prompt is empty; give some text.")
            if raw or (template is None and system is None):
                return tokenizer.encode(prompt, special=special)
            return self.encode([{"role": "user", "content": prompt}], system=system, special=special)
        if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
            raise PromptError(f"the prompt is {quoted(prompt)}; give text, chat messages or token ids.")
        if prompt and all(isinstance(token, int) and not isinstance(token, bool) for token in prompt):
            if system is not None:
                raise PromptError(
                    "token ids are read as they are, so there is no place for a system message; leave it out."
                )
            self._check_ids("the prompt", cast("Sequence[int]", prompt), PromptError)
            return list(cast("Sequence[int]", prompt))
        if raw:
            raise PromptError("raw takes text or token ids, not chat messages; leave raw out or join them yourself.")
        messages = list(cast("Sequence[Message]", prompt))
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        return prompt_ids(tokenizer, messages, template=template, special=special)

    def _check_ids(self, where: str, ids: Iterable[int], wrong: type[UsageError]) -> None:
        """Raise `wrong` for ids that are no tokens of this model."""
        size = self.assembly.tokenizer.vocab_size
        for token in ids:
            if not 0 <= token < size:
                raise wrong(
                    f"{where} has the token id {quoted(token)}; {self.assembly.model} has ids from 0 to {size - 1}."
                )

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
