"""`a|m`: the cheap drafter always, the dear one only where the judge says so, and the same text whatever it says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from forerun.backends.toy import ToyModel
from forerun.controllers import CostCurve, Goodput
from forerun.controllers.fixed import Fixed
from forerun.core.draft import Draft
from forerun.core.protocols import Controller, Drafter, DraftSession
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.drafters.base import Session, SessionDrafter
from forerun.drafters.choice import Choice
from forerun.drafters.compose import Chain
from forerun.drafters.grammar import Single, assemble, parse
from forerun.drafters.model import ModelDrafter
from forerun.drafters.none import NoneDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.engine import Engine
from forerun.verifiers.keyed import Keyed
from tests.contract.drafters import TEXT, helper, target


class Judge:
    """Wants `levels` of the dear drafter from requests whose prompt it likes."""

    def __init__(self, levels: int, likes: Callable[[Request], bool] = lambda request: True) -> None:
        self._levels, self._likes = levels, likes
        self.asked: list[Draft] = []
        self.told: list[tuple[list[Request], list[Draft], float]] = []
        self.unread: list[list[int]] = []
        self.read: list[list[int]] = []

    def depths(self, requests: Sequence[Request], cheap: Sequence[Draft], unread: Sequence[int]) -> list[int]:
        self.asked += cheap
        self.unread.append(list(unread))
        return [self._levels if self._likes(request) else 0 for request in requests]

    def watches(self, request: Request) -> bool:
        return True

    def watched(self, request: Request, sureness: float) -> None:
        assert 0.0 < sureness <= 1.0

    def threshold(self) -> float:
        return 0.25

    def spent(self, requests: Sequence[Request], drafts: Sequence[Draft], read: Sequence[int], seconds: float) -> None:
        self.told.append((list(requests), list(drafts), seconds))
        self.read.append(list(read))


class SaySession(Session):
    def __init__(self, drafter: Say, request: Request) -> None:
        super().__init__(request)
        self._drafter = drafter

    def propose_after(self, path: Sequence[int], budget: int) -> Draft:
        self._drafter.budgets.append(budget)
        return Draft.chain(self._drafter.tokens[:budget], source=self._drafter.name)


class Say(SessionDrafter[SaySession]):
    """Says the same whenever it is asked, and notes for how much."""

    def __init__(self, name: str, *tokens: int) -> None:
        self.name, self.tokens = name, tokens
        self.budgets: list[int] = []
        self.threshold = 0.0

    def open(self, request: Request) -> SaySession:
        return SaySession(self, request)


def propose(choice: Choice, requests: Sequence[Request], budgets: Sequence[int]) -> list[Draft]:
    sessions: list[DraftSession] = [choice.open(request) for request in requests]
    return choice.propose(sessions, budgets)


def ask(first: int = 1) -> Request:
    return Request([first, 2], Sampling())


def test_the_dear_drafter_does_not_run_where_the_judge_says_no() -> None:
    cheap, dear, judge = Say("cheap", 1, 2), Say("dear", 7, 8, 9), Judge(0)
    [draft] = propose(Choice(cheap, dear, judge), [ask()], [4])
    assert (draft.tokens, dear.budgets, judge.told) == ((1, 2), [], [])
    assert [draft.tokens for draft in judge.asked] == [(1, 2)]


def test_it_runs_as_deep_as_the_judge_says_and_the_cheap_nodes_are_merged_in() -> None:
    cheap, dear, judge = Say("cheap", 1, 2), Say("dear", 7, 8, 9), Judge(2)
    [draft] = propose(Choice(cheap, dear, judge), [ask()], [9])
    assert dear.budgets == [2]
    assert set(draft.tokens) == {7, 8, 1, 2}
    assert {draft.source_of(node) for node in range(len(draft))} == {"cheap", "dear"}
    assert dear.threshold == 0.25
    [(requests, drafts, seconds)] = judge.told
    assert (len(requests), [own.tokens for own in drafts]) == (1, [(7, 8)])
    assert seconds >= 0


def test_what_both_say_is_one_node_and_no_draft_passes_its_budget() -> None:
    cheap, dear, judge = Say("cheap", 5, 6), Say("dear", 5, 7), Judge(9)
    choice = Choice(cheap, dear, judge)
    assert choice.name == "cheap|dear"
    [draft] = propose(choice, [ask()], [6])
    paths = {tuple(draft.tokens[step] for step in draft.path_to(node)) for node in range(len(draft))}
    # The cheap one goes on after the deepest node of the dear one, within the budget.
    assert paths == {(5,), (5, 6), (5, 7), (5, 7, 5), (5, 7, 5, 6)}
    [short] = propose(choice, [ask()], [2])
    assert (len(short), dear.budgets) == (2, [6, 2])


def test_only_the_requests_that_earn_it() -> None:
    cheap, dear = Say("cheap", 1, 2), Say("dear", 7, 8, 9)
    judge = Judge(3, lambda request: request.prompt[0] == 5)
    drafts = propose(Choice(cheap, dear, judge), [ask(1), ask(5), ask(1)], [3, 3, 3])
    assert [draft.tokens for draft in drafts[::2]] == [(1, 2), (1, 2)]
    assert set(drafts[1].tokens) & {7, 8, 9}
    assert dear.budgets == [3]
    assert all(len(draft) <= 3 for draft in drafts)


def test_no_budget_asks_nobody() -> None:
    cheap, dear, judge = Say("cheap", 1), Say("dear", 7), Judge(3)
    assert [len(draft) for draft in propose(Choice(cheap, dear, judge), [ask()], [0])] == [0]
    assert (cheap.budgets, dear.budgets, judge.asked) == ([], [], [])


def test_a_silent_dear_drafter_leaves_the_cheap_draft() -> None:
    [draft] = propose(Choice(Say("cheap", 1, 2), Say("dear"), Judge(2)), [ask()], [4])
    assert draft.tokens == (1, 2)


def test_the_judge_is_told_what_is_unread_and_what_was_read() -> None:
    judge, model = Judge(2), ModelDrafter(helper(), target().info)
    one = Request(TEXT[:30], Sampling())
    choice = Choice(Say("cheap"), model, judge)
    session = choice.open(one)
    choice.propose([session], [2])
    choice.propose([session], [2])
    assert judge.unread[0] == judge.read[0] == [30]
    assert judge.unread[1] == judge.read[1] == [0]

    # Where the first of a chain speaks, its model has not read what it would have to.
    judge = Judge(2)
    chained = Choice(Say("cheap"), Chain([Say("first", 1), model]), judge)
    session = chained.open(one)
    for _ in range(2):
        chained.propose([session], [2])
    assert (judge.unread, judge.read) == ([[30], [30]], [[0], [0]])


def written(drafter: Drafter, controller: Controller, temperature: float) -> list[list[int]]:
    engine = Engine(target(), drafter, Keyed(), controller, max_sequences=3)
    sampling = Sampling(temperature=temperature, max_tokens=40)
    requests = [Request(TEXT[start : start + 12], sampling, seed=start) for start in (0, 3, 9)]
    for request in requests:
        engine.add(request)
    while not engine.idle:
        engine.step()
    engine.close()
    return [request.output for request in requests]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("levels", [0, 1, 4])
def test_the_text_is_the_plain_text_whatever_the_judge_says(levels: int, temperature: float) -> None:
    choice = Choice(SuffixDrafter(), ModelDrafter(helper(), target().info), Judge(levels))
    plain = written(NoneDrafter(), Fixed(0), temperature)
    assert written(choice, Fixed(5), temperature) == plain


def test_goodput_as_the_judge_runs_a_model_that_pays_and_drops_one_that_does_not() -> None:
    """The same toy as its own draft model is always right; so what decides is what its passes cost."""

    class Counted(ToyModel):
        passes = 0

        def forward(self, inputs, needs=None):  # type: ignore[no-untyped-def]
            Counted.passes += 1
            return super().forward(inputs)

    class Known(CostCurve):
        def observe(self, rows: int, seconds: float) -> None:
            """What passes of these toys cost here is not what they are said to cost."""

    ran = {}
    for name, second in (("cheap target", 1.0), ("dear target", 10.0)):
        Counted.passes = 0
        same = target()
        model = Counted(same.info.vocab_size, 2, same._law, context=same.info.context)
        goodput = Goodput(Known({1: second, 64: second}), 8, Known({1: 1.0}))
        choice = Choice(Say("cheap"), ModelDrafter(model, same.info), goodput.judge)
        assert written(choice, goodput, 0.0) == written(NoneDrafter(), Fixed(0), 0.0)
        ran[name] = Counted.passes
    assert ran["dear target"] > 2 * ran["cheap target"]


def test_without_a_judge_it_is_the_first_that_speaks() -> None:
    def make(single: Single, below: Drafter | None) -> Drafter:
        return Say(single.name, 3) if single.name == "ngram" else Say(single.name, 4)

    drafter = assemble(parse("ngram|suffix"), make)
    assert drafter.propose([drafter.open(ask())], [2])[0].tokens == (3,)
