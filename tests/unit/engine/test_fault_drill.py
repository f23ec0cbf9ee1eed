"""A fault at every line of a step: interrupts, full memory, broken parts; and afterwards the texts are as they should be.

A trace function raises at a line of forerun's when that is run for the k-th time: at every line that is reached in any step,
those that clean up after other faults included, and several times in one run. Whatever was hit, each answer is plain
decoding's, or has failed alone and says with what; nothing is reported twice or lost; no token stands behind a text's end; no
page of memory is lost; and what drafters share goes on being of use.
"""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest

import forerun
from forerun.backends.toy import ToyModel
from forerun.controllers import CostCurve, Fixed, Goodput
from forerun.core.choosing import TokenLogprob
from forerun.core.protocols import Candidate, Controller, ModelPlan
from forerun.core.request import Request, Speculation
from forerun.core.sampling import Sampling
from forerun.core.step import StepResult
from forerun.drafters.automaton import START
from forerun.drafters.compose import Merge
from forerun.drafters.draft_model import DraftModel
from forerun.drafters.history import History
from forerun.drafters.model import ModelDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.recycling import Matrix, RecyclingDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.engine import Engine, Method
from forerun.engine import Sequence as Running
from forerun.engine import engine as engine_module
from forerun.errors import BackendError
from forerun.text.stream import TextStream
from forerun.tokenizers.tokenizer import byte_tokenizer
from forerun.verifiers.keyed import Keyed
from forerun.verifiers.rejection import Rejection
from tests.unit.engine.toys import LOGITS, VOCAB, model

SOURCES = str(Path(forerun.__file__).parent)
# Steps after which something goes on for ever.
HANGS = 400
TOKENIZER = byte_tokenizer()

# What is raised, and how often. An error of a part's own drops a drafter or ends an answer; so there are fewer of them.
ERRORS: list[Callable[[], BaseException]] = [
    *[KeyboardInterrupt] * 6,
    *[MemoryError] * 2,
    lambda: BackendError("the drill"),
    lambda: RuntimeError("the drill"),
]


Line = tuple[str, int]  # file, number


class Injection:
    """While it is entered: raises `error` where `line` is run for the `at`-th time. Without a line it notes which are run."""

    def __init__(self, line: Line | None, at: int, error: BaseException) -> None:
        self.line, self.at, self.error = line, at, error
        self.seen: set[Line] = set()
        self.hit = False

    def __enter__(self) -> Injection:
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(SOURCES):
            return None
        return self._traced if self.line is None or self.line in _lines(code) else None

    def _traced(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            line = (frame.f_code.co_filename, frame.f_lineno)
            if self.line is None:
                self.seen.add(line)
            elif line == self.line and not _out_of_reach(frame, self.error):
                self.at -= 1
                if self.at == 0:
                    self.hit = True
                    raise self.error
        return self._traced

    def __str__(self) -> str:
        assert self.line is not None
        return f"{type(self.error).__name__} at {Path(self.line[0]).name}:{self.line[1]}"


@cache
def _lines(code: CodeType) -> frozenset[Line]:
    return frozenset((code.co_filename, line) for _, _, line in code.co_lines() if line is not None)


def _out_of_reach(frame: FrameType, error: BaseException) -> bool:
    """What never happens: a signal is handled at calls and jumps only, and there is none between a step's last assignment and
    its return; a model whose pass fails leaves every sequence as it was."""
    code = frame.f_code
    if code.co_qualname == "Engine.step":
        return frame.f_lineno == max(line for _, line in _lines(code))
    return isinstance(error, BackendError) and code.co_qualname == "ToyModel.forward"


class Thirds:
    """Only even ids may stand at every third place."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def allowed(self, path: Sequence[int]) -> Any:
        return None if (len(self.tokens) + len(path)) % 3 else np.arange(VOCAB) % 2 == 0

    def commit(self, token: int) -> None:
        self.tokens.append(token)

    def restart(self, tokens: Sequence[int]) -> None:
        self.tokens = list(tokens)


@dataclass
class Asking:
    """One request with all that may hang on it, and what was heard of it. after: the one with whose end it begins."""

    request: Request
    constrained: bool = False
    after: int | None = None
    sequence: Running | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    sources: set[str] = field(default_factory=set)
    ends: int = 0

    def start(self, engine: Engine) -> None:
        ends = self.request.stop_ids
        self.stream = TextStream(TOKENIZER, self.request.sampling.stop, ends)
        self.sequence = engine.add(self.request, self.stream, Thirds() if self.constrained else None)

    def hear(self, result: StepResult) -> None:
        assert self.sequence is not None
        self.tokens += result.tokens
        self.logprobs += result.logprobs
        self.ends += self.sequence.finished
        if self.sequence.finished:
            self.stream.finish()
        self.shown += self.stream.take()


def askings() -> list[Asking]:
    """One of each kind. The last starts like two before it, and goes on from what is kept of one."""
    start = [(i * 3 + i // 5) % VOCAB for i in range(18)]

    def asked(number: int, prompt: Sequence[int], constrained: bool = False, **options: Any) -> Asking:
        more = {name: options.pop(name) for name in ("stop_ids", "speculation") if name in options}
        after = options.pop("after", None)
        sampling = Sampling(**{"temperature": 0.9, "max_tokens": 10} | options)
        return Asking(Request(prompt, sampling, seed=number, id=str(number), **more), constrained, after)

    return [
        asked(0, [1, 2, 3], logprobs=2),
        asked(1, [*start, 1], stop_ids=frozenset([6])),
        asked(2, [1, 2, 3, 4] * 2, stop=["\x06\x02", "\x00\x05\x00"], temperature=0.7),
        asked(3, [5, 5], constrained=True, repetition_penalty=1.3),
        asked(4, [2, 7, 1], temperature=0.0, speculation=Speculation(verifier="rejection", draft="ngram")),
        asked(5, [*start, 2, 3], max_tokens=14, speculation=Speculation(num_speculative_tokens=3), after=1),
        asked(6, [3, 4] * 13, max_tokens=None, speculation=Speculation(enabled=False)),
        asked(7, [*start, 5, 1], max_tokens=5, after=5),
    ]


# Faults of one line, and of one run; for which time a line is run that it is hit; steps after which another line is tried.
EACH, FAULTS = 2, 14
OCCASIONS = (1, 1, 1, 2, 3, 7)
PATIENCE = 9
MOST_RUNS = 300


class Alternating(Fixed):
    """A model beside the other drafters at every second length of a text."""

    def plan(self, candidates: Sequence[Candidate]) -> ModelPlan:
        return ModelPlan([3 * (len(one.transcript.tokens) % 2) for one in candidates], 0.02)


class Known(CostCurve):
    def observe(self, rows: int, seconds: float) -> None:
        """Costs stay what they are, so that a drill can be had again."""


@dataclass
class Setup:
    """An engine with everything in it, in memory for three sequences or so."""

    controller: Controller
    history: History = field(default_factory=lambda: History(80))
    matrix: Matrix = field(default_factory=lambda: Matrix(limit=6))

    def __post_init__(self) -> None:
        self.target = model(context=36, pages=14, page=4)
        small = ToyModel(VOCAB, 2, LOGITS, context=40, pages=60, page=4)
        self.small = ModelDrafter(small, self.target.info, width=2, chunk=6, keep_prefixes=2, stage=NgramDrafter())
        cheap = Merge([SuffixDrafter(self.history, floor=0.0), RecyclingDrafter(VOCAB, self.matrix, floor=0.0)])
        self.engine = Engine(
            self.target,
            {"all": Method(cheap, self.small), "ngram": Method(cheap=NgramDrafter(1, 2))},
            [Keyed(), Rejection()],
            self.controller,
            max_sequences=4,
            prefill_rows=9,
            shared_rows=5,
            keep_prefixes=2,
        )


CONTROLLERS: dict[str, Callable[[], Controller]] = {
    "fixed": lambda: Alternating(5),
    "goodput": lambda: Goodput(Known({1: 1.0, 64: 1.5}), 6, Known({1: 0.05})),
}


@cache
def expected() -> list[tuple[list[int], str, str, list[TokenLogprob]]]:
    """Output, reason, text and log-probabilities of each request in plain decoding, one at a time."""
    found = []
    for one in askings():
        methods = {"all": Method(), "ngram": Method()}
        engine = Engine(model(context=36), methods, [Keyed(), Rejection()], Fixed(0))
        one.start(engine)
        while not engine.idle:
            for result in engine.step():
                one.hear(result)
        assert one.sequence is not None
        assert one.sequence.finish_reason is not None
        found.append((one.tokens, str(one.sequence.finish_reason), "".join(one.shown), one.logprobs))
    return found


def test_the_requests_of_the_drill_are_of_every_kind() -> None:
    """And all of what is drilled takes part: otherwise the drill says little."""
    reasons = [reason for _, reason, _, _ in expected()]
    assert reasons.count("stop") == 2
    assert reasons.count("length") == 6
    for name in CONTROLLERS:
        drill = Drill(name, 0)
        setup = drill.setup
        set_back, memory = 0, []
        release = setup.engine.scheduler.release

        def released(sequence: Running, release: Callable[[Running], None] = release) -> None:
            nonlocal set_back
            set_back += 1
            release(sequence)

        setup.engine.scheduler.release = released  # type: ignore[method-assign]
        drill.start()
        while not setup.engine.idle:
            drill.step()
            memory.append(setup.target.room().free)
        drill.check()
        assert min(memory) < 2
        assert set_back > 0
        sources = {source for one in drill.askings for source in one.sources}
        assert {"suffix", "recycling"} <= sources
        assert any(source.startswith("model:") for source in sources)
        assert any(one.sequence is not None and one.sequence.cached for one in drill.askings)
        assert len(setup.matrix) == 6
        assert len(setup.history.space().texts()) > 2


class Drill:
    """One run of all requests with faults on the way."""

    def __init__(self, controller: str, seed: int) -> None:
        self.numbers = random.Random(seed)
        self.setup = Setup(CONTROLLERS[controller]())
        self.askings = askings()
        self.injected: list[Injection] = []

    def start(self) -> None:
        for one in self.askings:
            if one.after is None:
                one.start(self.setup.engine)

    def step(self, injection: Injection | None = None) -> None:
        """One step, and what its caller hears of it."""
        engine = self.setup.engine
        try:
            if injection is None:
                results = engine.step()
            else:
                with injection:
                    results = engine.step()
        except BaseException as error:
            if injection is None or error is not injection.error:
                raise
            results = []
        if injection is not None and injection.hit:
            self.injected.append(injection)
            injection.error.__traceback__ = None  # it would hold on to what the frames held
        by_sequence = {id(one.sequence): one for one in self.askings}
        for result in results:
            one = by_sequence[id(result.sequence)]
            one.hear(result)
            one.sources.update(result.draft.source_of(node) for node in range(len(result.draft)))
        for one in self.askings:
            if one.after is not None and one.sequence is None and self.askings[one.after].ends:
                one.start(engine)

    def run(self, faults: int, left: dict[Line, int]) -> None:
        """Step to the end, with so many faults on the way. left: lines, and how many faults each is still to have."""
        self.start()
        injection, steps = None, 0
        for count in range(HANGS):
            if self.setup.engine.idle:
                break
            if injection is None or injection.hit or steps == PATIENCE:
                injection, steps = None, 0
                if left and len(self.injected) < faults:
                    line = self.numbers.choice(sorted(left))
                    left[line] -= 1
                    if not left[line]:
                        del left[line]
                    injection = Injection(line, self.numbers.choice(OCCASIONS), self.numbers.choice(ERRORS)())
            # Some faults meet what recovers from the one before; after others there is a step to settle.
            self.step(injection if count % 3 or not self.injected else None)
            steps += 1
        else:
            raise AssertionError(f"it goes on for ever after {self.said}")
        self.check()

    @property
    def said(self) -> list[str]:
        return list(map(str, self.injected))

    def check(self) -> None:
        injected = [injection.error for injection in self.injected]
        for one, (output, reason, text, logprobs) in zip(self.askings, expected(), strict=True):
            sequence, asked = one.sequence, one.request
            assert sequence is not None
            shown = "".join(one.shown)
            if sequence.error is not None:
                assert sequence.finish_reason == "error", self.said
                assert sequence.error in injected, self.said
                assert sequence.output == output[: sequence.generated], self.said
                assert shown == _text(asked, sequence.output), self.said
            else:
                assert (sequence.output, sequence.finish_reason) == (output, reason), self.said
                assert shown == text, self.said
                assert one.logprobs == logprobs, self.said
            assert one.tokens == sequence.output, self.said
            assert one.logprobs == sequence.logprobs, self.said
            assert one.ends == 1, self.said
            assert asked.sampling.max_tokens is None or sequence.generated <= asked.sampling.max_tokens
            assert not asked.stop_ids.intersection(sequence.output[:-1])
            assert sequence.kv is None
        self._check_memory()
        self._check_shared()

    def _check_memory(self) -> None:
        """No page is lost, but for what is kept on purpose."""
        setup = self.setup
        assert not setup.engine.scheduler.live
        assert not setup.engine.scheduler.waiting
        for prefixes in (setup.engine.prefixes, self._draft_model().prefixes):
            prefixes.clear()
            assert len(prefixes) == 0
        assert setup.target.room().free == setup.target.room().total, self.said
        if not setup.engine.speculator.failures():
            room = setup.small.model.room()
            assert room.free == room.total, self.said

    def _draft_model(self) -> DraftModel:
        return self.setup.small.source

    def _check_shared(self) -> None:
        """What was learned is whole, and drafts from it are as good as ever."""
        for generation in self.setup.history.space().generations:
            for text in generation.texts:
                state, length = generation.index.follow(START, 0, text.tolist())
                assert (state != START, length) == (True, len(text)), self.said
        history, matrix = self.setup.history, self.setup.matrix
        assert len(matrix) <= 7  # what was interrupted as it was put in is made up for by the next
        again = Setup(Fixed(5), history, matrix)
        for one, (output, reason, _, _) in list(zip(askings(), expected(), strict=True))[:3]:
            one.start(again.engine)
            while not again.engine.idle:
                again.engine.step()
            assert one.sequence is not None
            assert (one.sequence.output, one.sequence.finish_reason) == (output, reason), self.said
        assert again.engine.speculator.failures() == {}, self.said
        assert len(matrix) <= 6, self.said


def _text(request: Request, output: Sequence[int]) -> str:
    """The text of an answer that goes no further."""
    stream = TextStream(TOKENIZER, request.sampling.stop, request.stop_ids)
    for token in output:
        stream.push(token)
    stream.finish()
    return stream.text


@cache
def reached(controller: str) -> frozenset[Line]:
    """Lines that are run in a drill, those that recover from faults included."""
    found: set[Line] = set()
    learns = (engine_module.__file__, _line_of(Engine._pass, "speculator.learn"))
    for faults in (False, True):
        drill = Drill(controller, 0)
        drill.start()
        for count in range(HANGS):
            if drill.setup.engine.idle:
                break
            # Every step that recovers reads prompts anew: faults this often must end, or prompts are never read to their end.
            if faults and count % 4 == 3 and count < FAULTS * 4:
                drill.step(Injection(learns, 1, OSError()))
            noting = Injection(None, 0, KeyboardInterrupt())
            drill.step(noting)
            found |= noting.seen
        drill.check()
    return frozenset(found)


def _line_of(function: Callable[..., Any], text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("controller", CONTROLLERS)
def test_faults_at_any_line_leave_the_texts_as_they_should_be(controller: str, part: int) -> None:
    lines = sorted(reached(controller))
    assert len(lines) > 900
    left = dict.fromkeys(lines[part::4], EACH)
    hit: list[Injection] = []
    for seed in range(MOST_RUNS):
        if not left:
            break
        drill = Drill(controller, seed)
        drill.run(FAULTS, left)
        hit += drill.injected
    assert not left
    assert len({injection.line for injection in hit}) > 0.75 * len(lines) / 4
