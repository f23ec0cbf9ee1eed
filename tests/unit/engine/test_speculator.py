"""What is drafted in a step: whom each sequence asks, how much, and what the controller is told of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from forerun.backends.toy import ToyModel
from forerun.controllers import CostCurve, Goodput
from forerun.core.draft import EMPTY, Draft
from forerun.core.model import NOTHING, Needs
from forerun.core.protocols import Candidate, Controller, DraftingCost, DraftRequest, ModelPlan
from forerun.core.request import Request, Speculation
from forerun.core.sampling import Sampling
from forerun.core.step import StepResult
from forerun.core.transcript import Transcript
from forerun.drafters.base import Session, SessionDrafter
from forerun.drafters.model import ModelDrafter
from forerun.engine import Engine, Method
from forerun.engine.scheduler import Turn
from forerun.engine.sequence import Sequence as Running
from forerun.engine.speculator import Speculator
from forerun.verifiers.keyed import Keyed
from tests.unit.engine.toys import drain, engine_of, model, outputs, plain, requests, run


class Told(SessionDrafter[Session]):
    """Says the same whenever it is asked, and notes what it was asked for. unread: of every session."""

    def __init__(self, name: str, *tokens: int, unread: int = 0, needs: Needs = NOTHING) -> None:
        self.name, self.tokens, self.unread, self.needs = name, tokens, unread, needs
        self.calls: list[list[DraftRequest]] = []
        self.observed = 0

    def open(self, transcript: Transcript) -> Session:
        return ToldSession(self, transcript)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self.calls.append(list(requests))
        return super().propose(requests)

    def draft(self, session: Session, path: Sequence[int], nodes: int) -> Draft:
        return Draft.chain(self.tokens, source=self.name)

    @property
    def asked(self) -> list[DraftRequest]:
        """All that was asked for, one by one."""
        return [request for call in self.calls for request in call]


class ToldSession(Session):
    def __init__(self, drafter: Told, transcript: Transcript) -> None:
        super().__init__(transcript)
        self._drafter = drafter

    @property
    def unread(self) -> int:
        return self._drafter.unread

    def observe(self, result: StepResult) -> None:
        self._drafter.observed += 1


class Wanting:
    """A controller that wants `most` nodes, and `levels` of a model where `likes` says so. It notes all it is told.

    rests: texts whose drafters without a model are left alone.
    """

    name = "wanting"

    def __init__(
        self, most: int = 8, levels: int = 0, likes: Callable[[Candidate], bool] = lambda one: True, keep: int = 99
    ) -> None:
        self.most, self.levels, self._likes, self._keep = most, levels, likes, keep
        self.calls: list[str] = []
        self.planned: list[list[Candidate]] = []
        self.trimmed: list[tuple[list[Candidate], list[Draft], int, DraftingCost]] = []
        self.observed: list[list[StepResult]] = []
        self.forgotten: list[Transcript] = []
        self.rests: list[Transcript] = []

    def nodes(self, transcript: Transcript) -> int:
        self.calls.append("nodes")
        return self.most

    def asks(self, transcript: Transcript) -> bool:
        self.calls.append("asks")
        return transcript not in self.rests

    def plan(self, candidates: Sequence[Candidate]) -> ModelPlan:
        self.calls.append("plan")
        self.planned.append(list(candidates))
        return ModelPlan([self.levels if self._likes(one) else 0 for one in candidates], 0.25)

    def trim(
        self, candidates: Sequence[Candidate], drafts: Sequence[Draft], rows: int, cost: DraftingCost
    ) -> list[Draft]:
        self.calls.append("trim")
        self.trimmed.append((list(candidates), list(drafts), rows, cost))
        return [draft.fit(nodes=self._keep, depth=99, tree=True) for draft in drafts]

    def observe(self, results: Sequence[StepResult]) -> None:
        self.calls.append("observe")
        self.observed.append(list(results))

    def forget(self, transcript: Transcript) -> None:
        self.forgotten.append(transcript)


def sequence(
    prompt: Sequence[int] = (1, 2),
    method: str = "a",
    max_tokens: int | None = None,
    speculation: Speculation = Speculation(),
) -> Running:
    """One that has written a token and is about to read it."""
    asked = Request(prompt, Sampling(max_tokens=max_tokens), speculation=speculation)
    one = Running(asked, Keyed(), method=method)
    one.add(3)
    one.kv = model().open()
    one.kv.length = len(one.tokens) - 1
    return one


def turn(one: Running, nodes: int = 99) -> Turn:
    return Turn(one, (one.tokens[-1],), True, nodes)


def drafted(
    methods: dict[str, Method], controller: Controller, *turns: Turn, target: ToyModel | None = None
) -> list[Draft]:
    return Speculator(methods, controller, (target or model()).info).draft(turns)


# Whom a sequence asks.


def test_each_sequence_asks_its_own_method_and_each_drafter_is_asked_once() -> None:
    one, two = Told("one", 1, 2), Told("two", 3)
    methods = {"a": Method(cheap=one), "b": Method(cheap=two), "c": Method(cheap=one)}
    turns = [turn(sequence(method=method)) for method in ("a", "b", "", "c", "a")]
    drafts = drafted(methods, Wanting(), *turns)
    assert [draft.tokens for draft in drafts] == [(1, 2), (3,), (), (1, 2), (1, 2)]
    assert [len(call) for call in one.calls] == [3]
    assert [len(call) for call in two.calls] == [1]


def test_what_a_pass_must_report_is_what_any_drafter_needs() -> None:
    methods = {"a": Method(cheap=Told("one", needs=Needs((1,)))), "b": Method(model=Told("two", needs=Needs((-1, 1))))}
    assert Speculator(methods, Wanting(), model().info).needs == Needs((-1, 1))
    assert Speculator({}, Wanting(), model().info).needs == NOTHING


def test_a_turn_in_the_middle_of_a_prompt_drafts_nothing() -> None:
    one, controller = Told("one", 1, 2), Wanting()
    reading, writing = sequence(), sequence()
    turns = [Turn(reading, (1, 2, 3), False), turn(writing)]
    drafts = drafted({"a": Method(cheap=one)}, controller, *turns)
    assert [draft.tokens for draft in drafts] == [(), (1, 2)]
    assert [candidate.transcript for candidate in controller.planned[0]] == [writing]
    # The rows of the pass without drafts are of all of them.
    assert controller.trimmed[0][2] == 4


def test_a_step_asks_the_controller_each_thing_once() -> None:
    controller = Wanting(levels=2)
    methods = {"a": Method(Told("cheap", 1), Told("model", 2))}
    engine = Engine(model(), methods, [Keyed()], controller)
    for request in requests(2, max_tokens=2):
        engine.add(request)
    engine.step()
    assert controller.calls == ["nodes", "nodes", "asks", "asks", "plan", "trim", "observe"]


def test_who_rests_is_neither_asked_nor_told_and_its_model_goes_on() -> None:
    cheap, model_, controller = Told("cheap", 1), Told("model", 2), Wanting(levels=2)
    resting, other = sequence(), sequence()
    controller.rests = [resting]
    speculator = Speculator({"a": Method(cheap, model_)}, controller, model().info)
    for _ in range(3):
        drafts = speculator.draft([turn(resting), turn(other)])
        speculator.learn([StepResult(resting, (3,), tokens=(4,)), StepResult(other, (3,), tokens=(4,))])
    assert [draft.tokens for draft in drafts] == [(2,), (2, 1)]
    assert [len(call) for call in cheap.calls] == [1, 1, 1]
    assert (cheap.observed, model_.observed) == (3, 6)


def test_what_learning_took_is_charged_to_the_next_step() -> None:
    controller = Wanting()

    class Slow(Told):
        def open(self, transcript: Transcript) -> Session:
            class Sleeping(Session):
                def observe(self, result: StepResult) -> None:
                    time.sleep(0.02)

            return Sleeping(transcript)

    one = sequence()
    speculator = Speculator({"a": Method(Slow("slow", 1))}, controller, model().info)
    speculator.draft([turn(one)])
    speculator.learn([StepResult(one, (3,), tokens=(4,))])
    speculator.draft([turn(one)])
    assert [cost.seconds > 0.02 for _, _, _, cost in controller.trimmed] == [False, True]


# How much.


def test_nodes_are_bounded_by_request_controller_memory_and_context() -> None:
    info = model(context=40)
    for one, memory, most in (
        (sequence(), 99, 8),
        (sequence(speculation=Speculation(num_speculative_tokens=3)), 99, 3),
        (sequence(speculation=Speculation(num_speculative_tokens=30)), 99, 8),
        (sequence(speculation=Speculation(num_speculative_tokens=0)), 99, 0),
        (sequence(), 5, 5),
        (sequence(), 0, 0),
        (sequence([1] * 34), 99, 5),
        (sequence([1] * 39), 99, 0),
    ):
        told, controller = Told("one", 1, 2), Wanting(8)
        drafted({"a": Method(cheap=told)}, controller, turn(one, memory), target=info)
        assert [request.nodes for request in told.asked] == [most] * (most > 0)
        assert [candidate.nodes for candidate in controller.planned[0]] == [most] * (most > 0)


@pytest.mark.parametrize(("left", "levels"), [(2, 1), (3, 2), (None, 6)])
def test_no_level_is_drafted_that_could_not_be_kept(left: int | None, levels: int) -> None:
    """The bonus takes the last place; a draft that is too deep is cut."""
    one = sequence([1] * 33, max_tokens=None if left is None else left + 1)
    told, controller = Told("one", *range(1, 8)), Wanting(8)
    [draft] = drafted({"a": Method(cheap=told)}, controller, turn(one), target=model(context=40))
    assert len(draft) == levels
    assert controller.planned[0][0].depth == levels
    assert controller.planned[0][0].draft == draft


def test_for_an_answers_last_token_nobody_is_asked() -> None:
    cheap, drafting = Told("cheap", 1), Told("model", 2)
    assert drafted({"a": Method(cheap, drafting)}, Wanting(8, 4), turn(sequence(max_tokens=2))) == [EMPTY]
    assert (cheap.calls, drafting.calls) == ([], [])


def test_what_the_controller_trims_is_what_is_verified() -> None:
    [draft] = drafted({"a": Method(cheap=Told("one", 1, 2, 3))}, Wanting(keep=2), turn(sequence()))
    assert draft.tokens == (1, 2)


# Models.


def test_a_model_is_asked_where_the_plan_gives_it_levels() -> None:
    cheap, drafting = Told("cheap", 1, 2), Told("model", 7, 6, 5)
    controller = Wanting(8, 2, lambda candidate: candidate.transcript.request.prompt[0] == 5)
    turns = [turn(sequence([first, 2])) for first in (1, 5, 1)]
    drafts = drafted({"a": Method(cheap, drafting)}, controller, *turns)
    assert [draft.tokens for draft in drafts[::2]] == [(1, 2), (1, 2)]
    assert set(drafts[1].tokens) == {7, 6, 5, 1, 2}
    assert {drafts[1].source_of(node) for node in range(len(drafts[1]))} == {"cheap", "model"}
    [request] = drafting.asked
    assert (request.nodes, request.depth, request.min_probability) == (8, 2, 0.25)
    assert request.kv is turns[1].sequence.kv


def test_where_no_level_is_planned_no_model_is_asked() -> None:
    drafting, controller = Told("model", 7), Wanting(levels=0)
    [draft] = drafted({"a": Method(Told("cheap", 1), drafting)}, controller, turn(sequence()))
    assert (draft.tokens, drafting.calls) == ((1,), [])
    assert controller.trimmed[0][3].model_seconds == 0.0
    assert controller.trimmed[0][3].levels == 0


def test_levels_are_bounded_by_what_can_be_kept() -> None:
    drafting = Told("model", 7, 6)
    drafted({"a": Method(model=drafting)}, Wanting(8, 1 << 20), turn(sequence(max_tokens=4)))
    assert [(request.nodes, request.depth) for request in drafting.asked] == [(8, 2)]


def test_what_both_say_is_one_node_and_no_draft_passes_its_nodes() -> None:
    cheap, drafting = Told("cheap", 5, 6), Told("model", 5, 7)
    [draft] = drafted({"a": Method(cheap, drafting)}, Wanting(6, 9), turn(sequence()))
    paths = {tuple(draft.tokens[step] for step in draft.path_to(node)) for node in range(len(draft))}
    assert paths == {(5,), (5, 6), (5, 7)}
    [short] = drafted({"a": Method(cheap, drafting)}, Wanting(2, 9), turn(sequence()))
    assert len(short) == 2


def test_a_silent_model_leaves_the_draft_at_hand() -> None:
    [draft] = drafted({"a": Method(Told("cheap", 1, 2), Told("model"))}, Wanting(4, 2), turn(sequence()))
    assert draft.tokens == (1, 2)


def test_a_method_may_have_a_model_alone() -> None:
    controller = Wanting(4, 2)
    methods = {"a": Method(model=Told("model", 7, 6)), "b": Method()}
    drafts = drafted(methods, controller, turn(sequence()), turn(sequence(method="b")))
    assert [draft.tokens for draft in drafts] == [(7, 6), ()]
    assert [candidate.draft for candidate in controller.planned[0]] == [EMPTY, EMPTY]


# What the controller is told.


def test_it_is_told_what_a_model_would_have_to_read_and_what_was_read() -> None:
    target, drafting, controller = model(), ModelDrafter(model(2), model().info), Wanting(2, 2)
    speculator = Speculator({"a": Method(model=drafting), "b": Method(cheap=Told("cheap", 1))}, controller, target.info)
    one, other = sequence([1, 2, 3] * 10), sequence(method="b")
    for _ in range(2):
        speculator.draft([turn(one), turn(other)])
    assert [[candidate.unread for candidate in step] for step in controller.planned] == [[31, None], [0, None]]
    costs = [cost for _, _, _, cost in controller.trimmed]
    assert [list(cost.read) for cost in costs] == [[31, 0], [0, 0]]
    assert [cost.levels for cost in costs] == [2, 2]
    assert all(cost.seconds > 0 and cost.model_seconds > 0 for cost in costs)


def test_it_learns_the_steps_of_all_and_forgets_those_that_end() -> None:
    controller = Wanting(4)
    engine = engine_of(Told("cheap", 1, 2), controller=controller, prefill_rows=2)
    sequences = run(engine, requests(2))
    assert outputs(sequences) == plain(2)
    observed = [result for results in controller.observed for result in results]
    assert {id(result.sequence) for result in observed} == {id(one) for one in sequences}
    assert sum(len(result.tokens) for result in observed) == sum(one.generated for one in sequences)
    assert sorted(map(id, controller.forgotten)) == sorted(map(id, sequences))


def test_every_drafter_of_a_sequence_observes_its_steps_and_no_other() -> None:
    cheap, drafting, other = Told("cheap", 1), Told("model", 2), Told("other", 3)
    methods = {"a": Method(cheap, drafting), "b": Method(cheap=other)}
    engine = Engine(model(), methods, [Keyed()], Wanting(4))
    [one] = [engine.add(request) for request in requests(1)]
    results = drain(engine)
    assert len(results) == cheap.observed == drafting.observed
    assert other.observed == 0
    assert one.method == "a"


def test_goodput_runs_a_model_that_pays_and_drops_one_that_does_not() -> None:
    """The same toy as its own draft model is always right; so what decides is what its passes cost."""

    class Counted(ToyModel):
        passes = 0

        def forward(self, inputs: Any, needs: Any = NOTHING) -> Any:
            Counted.passes += 1
            return super().forward(inputs, needs)

    class Known(CostCurve):
        def observe(self, rows: int, seconds: float) -> None:
            """What passes of these toys cost here is not what they are said to cost."""

    ran = {}
    for name, second in (("fast target", 1.0), ("slow target", 10.0)):
        Counted.passes = 0
        target = model()
        small = Counted(target.info.vocab_size, 3, target.logits_of)
        goodput = Goodput(Known({1: second, 64: second}), 8, Known({1: 1.0}))
        methods = {"m": Method(Told("cheap"), ModelDrafter(small, target.info))}
        engine = Engine(target, methods, [Keyed()], goodput, max_sequences=3)
        assert outputs(run(engine, requests(3))) == plain(3)
        assert engine.speculator.failures() == {}
        ran[name] = Counted.passes
    assert ran["slow target"] > 2 * ran["fast target"]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("levels", [0, 1, 4])
def test_the_text_is_the_plain_text_whatever_is_planned(levels: int, temperature: float) -> None:
    methods = {"m": Method(Told("cheap", 1, 2), ModelDrafter(model(2), model().info, width=2))}
    controller = Wanting(5, levels, lambda candidate: len(candidate.transcript.tokens) % 3 > 0)
    engine = Engine(model(), methods, [Keyed()], controller, max_sequences=3)
    assert outputs(run(engine, requests(4, temperature=temperature))) == plain(4, temperature=temperature)
    assert engine.speculator.failures() == {}
