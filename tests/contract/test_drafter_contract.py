"""What every drafter promises, over all of them: the suite a new drafter must pass.

Safety (budget, vocabulary, tree, q), independence and repeatability of sessions, whatever rounds they observe; and
through the real engine the same text as plain decoding.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from forerun.backends.toy import ToyModel
from forerun.controllers.fixed import Fixed
from forerun.core.draft import Draft
from forerun.core.outcome import Outcome, Verdict
from forerun.core.protocols import KV, Drafter, DraftSession, Feed, Verifier
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.drafters.none import NoneDrafter
from forerun.engine import Engine
from forerun.verifiers.keyed import Keyed
from forerun.verifiers.rejection import Rejection
from tests.contract.drafters import CONTEXT, DRAFTERS, TEXT, VOCAB, target

GREEDY = Sampling(max_tokens=None)
WARM = Sampling(temperature=0.9, max_tokens=None)
FULL = Sampling(temperature=0.8, top_k=9, top_p=0.95, min_p=0.01, repetition_penalty=1.1, presence_penalty=0.2)


@pytest.fixture(params=sorted(DRAFTERS))
def make(request: pytest.FixtureRequest) -> Callable[[], Drafter]:
    return DRAFTERS[str(request.param)]


class Round:
    """One request on the toy target, driven by hand so that any acceptance can be forced."""

    def __init__(self, drafter: Drafter, request: Request, model: ToyModel) -> None:
        self.drafter, self.request, self.model = drafter, request, model
        self.kv: KV = model.open()
        self.session: DraftSession = drafter.open(request)

    def read(self, count: int) -> None:
        """A chunk in the middle of the prompt: nothing is drafted, nothing is said."""
        forced = tuple(self.request.tokens[self.kv.length : self.kv.length + count])
        with self.model.forward([Feed(self.kv, forced, logits=False)]) as scored:
            scored.commit(0, ())
            self.session.observe(Outcome(self.request, forced, decoded=False))

    def settle(self, draft: Draft, accept: Callable[[Draft], Sequence[int]], bonus: int | None = None) -> None:
        """Commit the path that `accept` picks and a bonus (the target's greedy choice by default)."""
        forced = tuple(self.request.tokens[self.kv.length :])
        with self.model.forward([Feed(self.kv, forced, draft)], self.drafter.needs) as scored:
            rows = scored.logits(0)
            path = tuple(accept(draft))
            last = rows[path[-1] + 1] if path else rows[0]
            added = int(np.argmax(last)) if bonus is None else bonus
            tokens = (*(draft.tokens[node] for node in path), added)
            for token in tokens:
                self.request.append(token, 10**6)
            scored.commit(0, path)
            hidden = {layer: scored.hidden(0, layer) for layer in self.drafter.needs.hidden}
            verdict = Verdict(path, added)
            outcome = Outcome(self.request, forced, draft, path, tokens, rows=rows, hidden=hidden, verdict=verdict)
            self.session.observe(outcome)


def nothing(draft: Draft) -> Sequence[int]:
    return ()


def deepest(draft: Draft) -> Sequence[int]:
    return draft.path_to(max(range(len(draft)), key=lambda n: draft.depths[n])) if len(draft) else ()


def some(draft: Draft) -> Sequence[int]:
    path = deepest(draft)
    return path[: len(path) // 2]


def request_of(
    prompt: Sequence[int], sampling: Sampling, *, shares_noise: bool = True, beliefs: bool = False
) -> Request:
    return Request(prompt, sampling, seed=3, shares_noise=shares_noise, wants_beliefs=beliefs, prediction=TEXT[4:60])


def check(draft: Draft, request: Request, budget: int) -> None:
    """The promises a draft keeps by itself."""
    assert len(draft) <= budget
    assert all(0 <= token < VOCAB for token in draft.tokens)
    for node in range(-1, len(draft)):
        children = draft.children(node)
        tokens = [draft.tokens[child] for child in children]
        assert draft.with_replacement or len(set(tokens)) == len(tokens)
        if draft.scores is not None:
            scores = [draft.scores[child] for child in children]
            assert all(0.0 <= score <= 1.0 + 1e-9 for score in scores)
            assert draft.q is None or scores == sorted(scores, reverse=True)
        if draft.q is not None and children:
            laws = [draft.q[child] for child in children]
            if laws[0] is None:
                assert all(law is None for law in laws)
                continue
            assert all(law is laws[0] for law in laws)
            assert laws[0].dtype == np.float64
            assert laws[0].shape == (VOCAB,)
            assert laws[0].min() >= 0.0
            assert abs(laws[0].sum() - 1.0) < 1e-12
            assert all(laws[0][token] > 0.0 for token in tokens)
    if request.shares_noise or request.sampling.greedy:
        assert draft.q is None


@pytest.mark.parametrize("sampling", [GREEDY, WARM, FULL], ids=["greedy", "warm", "full"])
@pytest.mark.parametrize("shares_noise", [True, False], ids=["keyed", "ratio"])
def test_every_draft_is_safe_whatever_was_accepted(
    make: Callable[[], Drafter], sampling: Sampling, shares_noise: bool
) -> None:
    drafter, chance = make(), random.Random(1)
    run = Round(drafter, request_of(TEXT[:30], sampling, shares_noise=shares_noise), target())
    run.read(9)
    run.read(14)
    for number in range(24):
        budget = chance.choice([0, 1, 2, 3, 5, 8, 13])
        draft = run.session.propose(budget)
        check(draft, run.request, budget)
        if number % 5 == 4:  # proposing twice is allowed, and says the same
            again = run.session.propose(budget)
            assert (again.tokens, again.parents) == (draft.tokens, draft.parents)
        fitted = draft.fit(nodes=6, depth=4, tree=True)
        bonus = chance.choice([None, chance.randrange(VOCAB)])
        run.settle(fitted, chance.choice([nothing, some, deepest]), bonus)
    run.session.close()
    run.session.close()
    drafter.close()
    drafter.close()


def test_budget_zero_is_the_empty_draft(make: Callable[[], Drafter]) -> None:
    drafter = make()
    session = drafter.open(request_of(TEXT, GREEDY))
    assert len(session.propose(0)) == 0
    assert [len(draft) for draft in drafter.propose([session], [0])] == [0]


def test_one_token_prompts_and_long_jumps(make: Callable[[], Drafter]) -> None:
    """A session may be asked late: after many tokens that it was told of only by their being there."""
    drafter = make()
    request = request_of([1], GREEDY)
    session = drafter.open(request)
    check(session.propose(4), request, 4)
    for token in TEXT[1:]:
        request.append(token, 10**6)
    check(session.propose(4), request, 4)


def test_sessions_are_independent(make: Callable[[], Drafter]) -> None:
    """A request is drafted for alike, alone and among others, in one call or in several."""
    prompts = [TEXT[:20], TEXT[5:40], [1, 2, 3]]

    def play(drafter: Drafter, chosen: Sequence[int], together: bool) -> dict[int, list[Draft]]:
        runs = {i: Round(drafter, request_of(prompts[i], WARM), target()) for i in chosen}
        seen: dict[int, list[Draft]] = {i: [] for i in chosen}
        for _ in range(6):
            sessions = [run.session for run in runs.values()]
            if together:
                drafts = drafter.propose(sessions, [4] * len(sessions))
            else:
                drafts = [session.propose(4) for session in sessions]
            for (i, run), draft in zip(runs.items(), drafts, strict=True):
                seen[i].append(draft)
                run.settle(draft, some)
        return seen

    def shape(drafts: Sequence[Draft]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        return [(draft.tokens, draft.parents) for draft in drafts]

    together, apart = play(make(), [0, 1, 2], True), play(make(), [0, 1, 2], False)
    for i in range(3):
        assert shape(together[i]) == shape(apart[i])
    if not getattr(make(), "shares_memory", False):
        for i in range(3):
            assert shape(together[i]) == shape(play(make(), [i], True)[i])


def test_the_same_history_gives_the_same_drafts(make: Callable[[], Drafter]) -> None:
    def play() -> list[Draft]:
        run = Round(make(), request_of(TEXT[:33], WARM), target())
        drafts = []
        for accept in [nothing, deepest, some, deepest, nothing, some]:
            drafts.append(run.session.propose(6))
            run.settle(drafts[-1], accept)
        return drafts

    for one, other in zip(play(), play(), strict=True):
        assert (one.tokens, one.parents, one.scores) == (other.tokens, other.parents, other.scores)


def test_proposing_after_a_path_is_proposing_once_it_is_committed(make: Callable[[], Drafter]) -> None:
    """Where a drafter continues paths: the same budget, safety and vocabulary, and nothing of it stays behind."""
    drafter = make()
    request = request_of(TEXT[:30], WARM)
    session = drafter.open(request)
    propose_after = getattr(session, "propose_after", None)
    if propose_after is None:
        pytest.skip("this drafter does not continue paths")
    before = session.propose(5)
    check(propose_after((4, 5, 6), 5), request, 5)
    check(propose_after((7,), 3), request, 3)
    after = session.propose(5)
    assert (before.tokens, before.parents) == (after.tokens, after.parents)


def test_beliefs_are_laws_where_a_draft_carries_q(make: Callable[[], Drafter]) -> None:
    request = request_of(TEXT[:30], FULL, shares_noise=False, beliefs=True)
    draft = make().open(request).propose(6)
    if draft.beliefs is not None:
        for belief in draft.beliefs:
            assert belief is None or abs(belief.sum() - 1.0) < 1e-12


def complete(
    drafter: Drafter, verifier: Verifier, prompts: Sequence[Sequence[int]], sampling: Sampling, nodes: int
) -> list[list[int]]:
    engine = Engine(target(), drafter, verifier, Fixed(nodes), max_sequences=3, prefill_rows=8)
    requests = [Request(prompt, sampling, seed=11 + i, prediction=TEXT[7:50]) for i, prompt in enumerate(prompts)]
    for request in requests:
        engine.add(request)
    while not engine.idle:
        engine.step()
    engine.close()
    assert all(request.finish_reason == "length" for request in requests)
    return [request.output for request in requests]


PROMPTS = [TEXT[:10], TEXT[3:31], [5], TEXT[2:14]]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=16),
        Sampling(temperature=0.9, max_tokens=16),
        Sampling(temperature=1.1, top_k=6, top_p=0.9, repetition_penalty=1.2, frequency_penalty=0.1, max_tokens=16),
    ],
    ids=["greedy", "warm", "full"],
)
@pytest.mark.parametrize("nodes", [5])
def test_the_engine_writes_the_plain_text(make: Callable[[], Drafter], sampling: Sampling, nodes: int) -> None:
    plain = complete(NoneDrafter(), Keyed(), PROMPTS, sampling, 0)
    assert complete(make(), Keyed(), PROMPTS, sampling, nodes) == plain
    if sampling.greedy:
        assert complete(make(), Rejection(), PROMPTS, sampling, nodes) == plain


def test_the_engine_runs_to_the_end_of_the_context(make: Callable[[], Drafter]) -> None:
    sampling = Sampling(temperature=0.7, max_tokens=None)
    plain = complete(NoneDrafter(), Keyed(), PROMPTS[:2], sampling, 0)
    assert complete(make(), Keyed(), PROMPTS[:2], sampling, 6) == plain
    assert [len(text) + len(prompt) for text, prompt in zip(plain, PROMPTS[:2], strict=True)] == [CONTEXT] * 2


def test_ratio_rules_run_through_the_engine(make: Callable[[], Drafter]) -> None:
    """No string to compare with here (the exact suite has the law); but it must run, and repeat itself."""
    sampling = Sampling(temperature=0.9, max_tokens=16)
    once = complete(make(), Rejection(), PROMPTS, sampling, 5)
    assert once == complete(make(), Rejection(), PROMPTS, sampling, 5)
    assert all(0 <= token < VOCAB for text in once for token in text)
