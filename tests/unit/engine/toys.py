"""Toy targets, drafters that know a text, and what plain decoding writes: what the tests of the engine share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from forerun.backends.toy import ToyModel, ToyOutput, random_logits
from forerun.controllers import Fixed
from forerun.core.draft import Draft
from forerun.core.model import NOTHING, ForwardInput, Model, Needs
from forerun.core.protocols import Controller, Drafter
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.core.step import StepResult
from forerun.core.transcript import Transcript
from forerun.drafters.base import Session, SessionDrafter
from forerun.engine import Engine, Method
from forerun.engine import Sequence as Running
from forerun.verifiers.keyed import Keyed

VOCAB = 8
LOGITS = random_logits(VOCAB, 11)
# Most steps that any of these tests needs: what goes on for longer hangs.
MOST_STEPS = 3000


def model(order: int = 3, **options: Any) -> ToyModel:
    return ToyModel(VOCAB, order, LOGITS, **options)


class OracleSession(Session):
    """Proposes the tokens of a known text as a chain, with a wrong sibling before each and a wrong token now and then."""

    def __init__(self, transcript: Transcript, text: Sequence[int], wrong_every: int) -> None:
        super().__init__(transcript)
        self._text, self._wrong = text, wrong_every
        self.seen: list[StepResult] = []
        self.finished = self.closed = 0

    def draft(self, nodes: int) -> Draft:
        start = len(self.transcript.tokens)
        tokens: list[int] = []
        parents: list[int] = []
        parent = -1
        for position in range(start, min(len(self._text), start + nodes // 2)):
            right = self._text[position]
            tokens += [(right + 1) % VOCAB, right if position % self._wrong else (right + 2) % VOCAB]
            parents += [parent, parent]
            parent = len(tokens) - 1
        return Draft(tuple(tokens), tuple(parents), source="oracle")

    def observe(self, result: StepResult) -> None:
        self.seen.append(result)

    def finish(self) -> None:
        self.finished += 1

    def close(self) -> None:
        self.closed += 1


class OracleDrafter(SessionDrafter[OracleSession]):
    """texts: by the requests' ids, prompt and output."""

    name = "oracle"

    def __init__(self, texts: Mapping[str, Sequence[int]], wrong_every: int = 4, needs: Needs = NOTHING) -> None:
        self._texts, self._wrong, self.needs = texts, wrong_every, needs
        self.sessions: list[OracleSession] = []
        self.closed = 0

    def open(self, transcript: Transcript) -> OracleSession:
        self.sessions.append(OracleSession(transcript, self._texts[transcript.request.id], self._wrong))
        return self.sessions[-1]

    def draft(self, session: OracleSession, path: Sequence[int], nodes: int) -> Draft:
        return session.draft(nodes)

    def close(self) -> None:
        self.closed += 1


def requests(
    count: int = 1, *, speculation: Any = None, stop_ids: Sequence[int] = (), **sampling: Any
) -> list[Request]:
    """Requests whose ids are their numbers."""
    chosen = Sampling(**{"max_tokens": 40, "temperature": 0.9} | sampling)
    more = {} if speculation is None else {"speculation": speculation}
    return [
        Request([1, 2, 3 + i % 4] * (i + 1), chosen, seed=i, id=str(i), stop_ids=frozenset(stop_ids), **more)
        for i in range(count)
    ]


def engine_of(drafter: Drafter | None = None, nodes: int = 0, target: Model | None = None, **options: Any) -> Engine:
    """An engine with keyed verification; `drafter` runs no model."""
    methods = {} if drafter is None else {drafter.name: Method(cheap=drafter)}
    controller: Controller = options.pop("controller", None) or Fixed(nodes)
    return Engine(target or model(), methods, [Keyed()], controller, **options)


def drain(engine: Engine, check: Callable[[], None] = lambda: None) -> list[StepResult]:
    """Step until nothing is left to do; everything that was reported."""
    results: list[StepResult] = []
    for _ in range(MOST_STEPS):
        if engine.idle:
            return results
        results += engine.step()
        check()
    raise AssertionError("the engine never comes to an end")


def run(engine: Engine, asked: Sequence[Request]) -> list[Running]:
    """The sequences of some requests, run to their ends."""
    sequences = [engine.add(request) for request in asked]

    def invariant() -> None:
        for sequence in sequences:
            if sequence.kv is not None and sequence.generated:
                assert sequence.kv.length == len(sequence.tokens) - 1

    drain(engine, invariant)
    return sequences


def outputs(sequences: Sequence[Running]) -> list[list[int]]:
    return [sequence.output for sequence in sequences]


def plain(count: int = 1, **sampling: Any) -> list[list[int]]:
    """What plain decoding writes for `requests`, one after the other."""
    return [outputs(run(engine_of(), [request]))[0] for request in requests(count, **sampling)]


def whole(count: int = 1, **sampling: Any) -> dict[str, list[int]]:
    """Prompts and outputs, as an oracle wants them."""
    asked, written = requests(count, **sampling), plain(count, **sampling)
    return {request.id: [*request.prompt, *output] for request, output in zip(asked, written, strict=True)}


class Breaking(ToyModel):
    """A toy whose passes fail where `fails` says so: when they are entered, or when they are left."""

    def __init__(
        self,
        fails: Callable[[int, Sequence[ForwardInput]], BaseException | None],
        *,
        when: Literal["entered", "left"] = "entered",
        **options: Any,
    ) -> None:
        super().__init__(VOCAB, 3, LOGITS, **options)
        self.passes = 0
        self._fails, self._when = fails, when

    @contextmanager
    def forward(self, inputs: Sequence[ForwardInput], needs: Needs = NOTHING) -> Iterator[ToyOutput]:
        self.passes += 1
        error = self._fails(self.passes, inputs)
        with super().forward(inputs, needs) as output:
            if error is not None and self._when == "entered":
                raise error
            yield output
            if error is not None:
                raise error
