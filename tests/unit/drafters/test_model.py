"""The draft model: what it reads, how often it runs, and that its q is the law it drew from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forerun.backends.reference import ReferenceModel
from forerun.backends.toy import ToyModel, ToyOutput, random_logits
from forerun.controllers import CostCurve, Goodput
from forerun.controllers.fixed import Fixed
from forerun.core.draft import Draft
from forerun.core.protocols import NOTHING, Controller, Drafter, Floats, ForwardInput, Needs
from forerun.core.request import Request
from forerun.core.sampling import Sampling, choose, law
from forerun.drafters.choice import Choice
from forerun.drafters.head import Head
from forerun.drafters.model import ModelDrafter
from forerun.drafters.model_tree import ratio_scores
from forerun.drafters.none import NoneDrafter
from forerun.engine import Engine
from forerun.errors import BackendError
from forerun.verifiers.keyed import Keyed
from forerun.weights.spec import Spec
from tests.unit.backends.tiny import random_tensors, spec_of, text, tiny

VOCAB = 9
LAW = random_logits(VOCAB, 4, 2.0)
TARGET = ToyModel(VOCAB, 3, LAW).info


class Counted(ToyModel):
    """A toy that notes the rows of each pass."""

    def __init__(self, *, context: int = 100, rows: int = VOCAB) -> None:
        super().__init__(rows, 3, random_logits(rows, 4, 2.0), context=context)
        self.passes: list[list[tuple[int, int]]] = []

    @contextmanager
    def forward(self, inputs: Sequence[ForwardInput], needs: Needs = NOTHING) -> Iterator[ToyOutput]:
        self.passes.append([(len(feed.input_tokens), len(feed.draft)) for feed in inputs])
        with super().forward(inputs, needs) as output:
            yield output


def request(tokens: Sequence[int], temperature: float = 0.0, *, shares_noise: bool = True, seed: int = 1) -> Request:
    return Request(tokens, Sampling(temperature=temperature), seed=seed, shares_noise=shares_noise)


def drafter(model: ToyModel, width: int = 1, threshold: float = 0.0, chunk: int = 64, depth: int = 0) -> ModelDrafter:
    return ModelDrafter(model, TARGET, width=width, threshold=threshold, chunk=chunk, depth=depth)


def plainly(tokens: Sequence[int], count: int, temperature: float) -> list[int]:
    """What the model itself would write."""
    asked = request(tokens, temperature)
    for _ in range(count):
        row = LAW(tuple(asked.tokens[-3:]))
        asked.append(choose(row, asked.prefix(), asked.sampling, VOCAB, asked.token_stream), 10**6)
    return asked.output


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_chain_is_what_the_model_itself_would_write(temperature: float) -> None:
    asked = request([1, 2, 3, 4], temperature)
    session = drafter(Counted()).open(asked)
    draft = session.propose(5)
    assert draft.is_chain
    assert list(draft.tokens) == plainly(asked.tokens, 5, temperature)
    assert draft.q is None


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_tree_holds_what_the_model_would_write_first(width: int, temperature: float) -> None:
    """First children are the model's own choices, after every node, so its KV held the right path at each."""
    asked = request([1, 2, 3, 4], temperature)
    session = drafter(Counted(), width).open(asked)
    for _ in range(4):
        draft = session.propose(9)
        assert not draft.is_chain
        for node in range(-1, len(draft)):
            if draft.children(node):
                path = [draft.tokens[step] for step in draft.path_to(node)]
                row = LAW((*asked.tokens, *path)[-3:])
                own = choose(row, asked.prefix(path), asked.sampling, VOCAB, asked.token_stream)
                assert draft.tokens[draft.children(node)[0]] == own
        asked.append(draft.tokens[1], 10**6)
        asked.append(7, 10**6)


def test_one_row_a_pass_after_the_text_is_read() -> None:
    model = Counted()
    asked = request([1, 2, 3, 4])
    session = drafter(model).open(asked)
    draft = session.propose(4)
    assert model.passes == [[(4, 0)], [(1, 0)], [(1, 0)], [(1, 0)]]
    # All four accepted: the last of them and the bonus are unread.
    for token in (*draft.tokens, 0):
        asked.append(token, 10**6)
    model.passes.clear()
    session.propose(1)
    assert model.passes == [[(2, 0)]]
    # One of two accepted, then another token: the KV is cut back and reads just that token.
    draft = session.propose(3)
    asked.append(draft.tokens[0], 10**6)
    asked.append((draft.tokens[1] + 1) % VOCAB, 10**6)
    model.passes.clear()
    session.propose(1)
    assert model.passes == [[(1, 0)]]


def test_a_tree_has_as_many_passes_as_levels() -> None:
    model = Counted()
    draft = drafter(model, 3).open(request([1, 2, 3])).propose(12)
    assert len(model.passes) in (max(draft.depths), max(draft.depths) + 1)
    model.passes.clear()
    shallow = drafter(model, 3, depth=2).open(request([1, 2, 3])).propose(12)
    assert max(shallow.depths) == 2
    assert len(model.passes) == 2


def test_long_texts_are_read_in_chunks_and_sessions_share_passes() -> None:
    model = Counted()
    draft_model = drafter(model, chunk=10)
    asked = [request(list(range(8)) * 4), request([1, 2]), request([3] * 15)]
    sessions = [draft_model.open(r) for r in asked]
    drafts = draft_model.propose(sessions, [3, 2, 0])
    assert [len(d) for d in drafts] == [3, 2, 0]
    assert model.passes == [[(10, 0)]] * 3 + [[(2, 0), (2, 0)], [(1, 0), (1, 0)], [(1, 0)]]
    assert list(drafts[0].tokens) == plainly(asked[0].tokens, 3, 0.0)


def test_it_stops_drafting_at_its_context() -> None:
    model = Counted(context=10)
    asked = request([1, 2, 3, 4, 5, 6, 7])
    session = drafter(model).open(asked)
    lengths = []
    for token in (0, 1, 2, 3, 4):
        draft = session.propose(8)
        lengths.append(max(draft.depths, default=0))
        asked.append(token, 10**6)
    assert lengths == [4, 3, 2, 1, 0]


def test_a_token_it_does_not_know_ends_its_drafting() -> None:
    asked = Request([1, 2, 3], Sampling())
    session = drafter(Counted(rows=7)).open(asked)
    assert len(session.propose(3)) == 3
    assert len(session.propose_after((8,), 3)) == 0
    asked.append(8, 100)
    assert len(session.propose(3)) == 0


def test_padding_is_never_proposed_and_q_has_the_targets_width() -> None:
    wide = ModelDrafter(Counted(rows=14), replace(TARGET, usable_vocab=6), width=3)
    session = wide.open(request([1, 2, 3], 5.0, shares_noise=False))
    draft = session.propose(12)
    assert draft.q is not None
    assert max(draft.tokens) < 6
    assert all(q is not None and q.shape == (VOCAB,) and not q[6:].any() for q in draft.q)


@pytest.mark.parametrize("width", [1, 3])
def test_q_is_the_law_that_was_drawn_from(width: int) -> None:
    """Over many seeds, first children of the root are distributed as q, second ones as q without the first."""
    count = 1200
    model, p = ToyModel(VOCAB, 3, LAW), np.zeros((2, VOCAB))
    expected = np.zeros((2, VOCAB))
    for seed in range(count):
        asked = request([1, 2, 3], 1.0, shares_noise=False, seed=seed)
        session = drafter(model, width, depth=1).open(asked)
        draft = session.propose(width)
        assert draft.q is not None
        q = draft.q[0]
        assert q is not None
        np.testing.assert_array_equal(q, law(LAW((1, 2, 3)), asked.prefix(), asked.sampling, VOCAB))
        for rank, token in enumerate(draft.tokens[:2]):
            p[rank, token] += 1.0 / count
            expected[rank] += q / count
            q = q.copy()
            q[token] = 0.0
            q /= q.sum()
    assert np.abs(p - expected).max() < 0.05


def test_draws_are_independent_below_different_nodes_and_between_rounds_for_ratio_rules() -> None:
    """A flat law, so a draw is the noise alone: siblings' children must not repeat one another."""
    flat = ToyModel(200, 1, lambda path: np.zeros(200, dtype=np.float32))
    drafts: list[Draft] = []
    for shares_noise in (True, False):
        asked = Request([1, 2], Sampling(temperature=1.0), shares_noise=shares_noise)
        session = ModelDrafter(flat, flat.info, width=3, depth=2).open(asked)
        drafts.append(session.propose(12))
        asked.append(5, 100)
        drafts.append(session.propose(1))
    keyed, keyed_later, ratio, ratio_later = drafts
    nieces = [[draft.tokens[c] for c in draft.children(node)] for draft in (keyed, ratio) for node in (0, 1)]
    assert nieces[0] == nieces[1]
    assert nieces[2] != nieces[3]
    assert keyed_later.tokens[0] == nieces[0][0]
    assert ratio_later.tokens[0] not in (nieces[2][0], nieces[3][0])


def test_the_threshold_keeps_the_weak_token_and_stops_after_it() -> None:
    model = Counted()
    whole = drafter(model).open(request([1, 2, 3])).propose(8)
    assert whole.scores is not None
    reach = np.cumprod(whole.scores)
    threshold = float(reach[2] + reach[1]) / 2
    stopped = drafter(model, threshold=threshold).open(request([1, 2, 3])).propose(8)
    assert stopped.tokens == whole.tokens[:3]


def test_ratio_scores_look_at_no_later_draw() -> None:
    q = np.array([0.5, 0.3, 0.2, 0.0])
    one, other = ratio_scores(q, np.array([0, 1])), ratio_scores(q, np.array([0, 2]))
    assert one == other
    assert one == sorted(one, reverse=True)
    assert len(ratio_scores(np.array([1.0, 0.0]), np.array([0, 1]))) == 1


def test_numbers_that_are_not_numbers_end_the_draft_quietly() -> None:
    broken = ToyModel(VOCAB, 1, lambda path: np.full(VOCAB, np.nan, dtype=np.float32))
    assert len(drafter(broken).open(request([1, 2])).propose(4)) == 0


class Failing(Counted):
    """A toy whose third pass fails after its rows were looked at."""

    @contextmanager
    def forward(self, inputs: Sequence[ForwardInput], needs: Needs = NOTHING) -> Iterator[ToyOutput]:
        with super().forward(inputs, needs) as output:
            yield output
            if len(self.passes) == 3:
                raise BackendError("out of memory")


@pytest.mark.parametrize("width", [1, 3])
def test_a_failed_pass_leaves_a_session_usable(width: int) -> None:
    asked = request([1, 2, 3])
    session = drafter(Failing(), width).open(asked)
    with pytest.raises(BackendError):
        session.propose(9)
    fresh = drafter(Counted(), width).open(asked)
    assert session.propose(9) == fresh.propose(9)


def tree_of(draft: Draft) -> set[tuple[tuple[int, ...], float]]:
    """Paths and scores, in no order."""
    assert draft.scores is not None
    return {
        (tuple(draft.tokens[step] for step in draft.path_to(node)), round(draft.scores[node], 9))
        for node in range(len(draft))
    }


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("shares_noise", [True, False])
def test_a_helper_changes_the_passes_not_the_draft(width: int, temperature: float, shares_noise: bool) -> None:
    """The helper is the same model one token of context short, so it is right often, and never changes anything."""
    alone, helped = Counted(), Counted()
    near = ToyModel(VOCAB, 3, lambda path: LAW(path) + random_logits(VOCAB, 5, 0.4)(path[-1:]))
    stage = ModelDrafter(helped, TARGET, width=width, helper=drafter(near, 2))
    passes = [0, 0]
    requests = [request([1, 2, 3], temperature, shares_noise=shares_noise) for _ in range(2)]
    sessions = [drafter(alone, width).open(requests[0]), stage.open(requests[1])]
    for token in (4, 4, 0, 1, 8, 2):
        drafts = [session.propose(8) for session in sessions]
        assert tree_of(drafts[0]) == tree_of(drafts[1])
        for asked in requests:
            asked.append(drafts[0].tokens[0], 10**6)
            asked.append(token, 10**6)
    passes = [len(alone.passes), len(helped.passes)]
    assert passes[1] < 0.8 * passes[0]


def test_stages_can_be_stacked() -> None:
    bottom = drafter(Counted())
    middle = ModelDrafter(Counted(), TARGET, helper=bottom)
    top = Counted()
    stack = ModelDrafter(top, TARGET, helper=middle, helped=3)
    asked = request([1, 2, 3], 0.8)
    session = stack.open(asked)
    draft = session.propose(8)
    assert list(draft.tokens) == plainly([1, 2, 3], 8, 0.8)
    # Each pass reads three guesses, all right: four levels a pass.
    assert len(top.passes) == 2
    assert stack.name == "model:toy<model:toy<model:toy"
    session.close()
    stack.close()


def test_a_restricted_head_proposes_its_ids_only() -> None:
    """Rows of a model whose head covers four ids are put where those belong."""
    head = np.array([8, 1, 5, 2])
    model = ToyModel(VOCAB, 3, lambda path: LAW(path)[head])
    asked = request([1, 2, 3], 1.0, shares_noise=False)
    draft = ModelDrafter(model, TARGET, width=3, head=Head(head, VOCAB)).open(asked).propose(10)
    assert set(draft.tokens) <= set(head.tolist())
    assert draft.q is not None
    q = draft.q[0]
    assert q is not None
    expected = np.full(VOCAB, -np.inf, dtype=np.float32)
    expected[head] = LAW((1, 2, 3))[head]
    np.testing.assert_array_equal(q, law(expected, asked.prefix(), asked.sampling, VOCAB))


class Counting:
    """A model that notes how many tokens its passes were fed."""

    def __init__(self, model: ReferenceModel) -> None:
        self._model, self.info, self.fed = model, model.info, 0

    def forward(self, inputs: Sequence[ForwardInput], needs: Needs = NOTHING) -> Any:
        self.fed += sum(len(feed.input_tokens) + len(feed.draft) for feed in inputs)
        return self._model.forward(inputs, needs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def engine_output(
    target: ReferenceModel, drafter: Drafter, controller: Controller, temperature: float
) -> list[list[int]]:
    """Answers to three prompts, two at a time, read in chunks; the last prompt is the first once more."""
    engine = Engine(target, drafter, Keyed(), controller, max_sequences=2, prefill_rows=40, keep_prefixes=1)
    sampling = Sampling(temperature=temperature, max_tokens=12)
    requests = [Request(list(text(90, seed)), sampling, seed=seed) for seed in (1, 2, 1)]
    for request in requests:
        engine.add(request)
    while not engine.idle:
        engine.step()
    return [request.output for request in requests]


def first_layers_of(spec: Spec, tensors: dict[str, Floats]) -> Counting:
    return Counting(ReferenceModel(replace(spec, layers=2, sliding=spec.sliding[:2]), tensors, threads=1))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_targets_first_layers_draft_from_its_own_keys_and_read_no_text(temperature: float) -> None:
    spec = spec_of("llama")
    tensors = random_tensors(spec)
    whole = ReferenceModel(spec, tensors, threads=1)
    plain = engine_output(whole, NoneDrafter(), Fixed(0), temperature)
    fed = []
    for borrows in (False, True):
        first = first_layers_of(spec, tensors)
        drafter = ModelDrafter(first, whole.info, borrows=borrows)
        assert engine_output(whole, drafter, Fixed(3), temperature) == plain
        fed.append(first.fed)
    assert fed[0] - fed[1] >= 3 * 85


def test_goodput_is_told_of_real_rounds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the target has read a prompt there is nothing to borrow, and what takes no time says nothing of a level."""
    spec = spec_of("llama")
    tensors = random_tensors(spec)
    whole = ReferenceModel(spec, tensors, threads=1)
    goodput = Goodput(CostCurve({1: 1.0, 64: 1.0}), 4, CostCurve({1: 0.01}))
    judge = goodput.judge
    told: list[int] = []
    spent = judge.spent

    def spy(requests: Sequence[Request], drafts: Sequence[Draft], read: Sequence[int], seconds: float) -> None:
        told.extend(len(draft) for draft in drafts)
        assert not any(read)
        spent(requests, drafts, read, seconds)

    monkeypatch.setattr(judge, "spent", spy)
    drafter = Choice(NoneDrafter(), ModelDrafter(first_layers_of(spec, tensors), whole.info, borrows=True), judge)
    assert engine_output(whole, drafter, goodput, 0.0) == engine_output(whole, NoneDrafter(), Fixed(0), 0.0)
    assert told
    assert all(told)


def test_the_next_turn_reads_only_what_is_new() -> None:
    """A draft model's KV of an ended text is kept for one that starts the same, as the target's is."""
    spec = spec_of("llama")
    tensors = random_tensors(spec)
    fed = []
    for kept in (0, 1):
        whole = ReferenceModel(spec, tensors, threads=1)
        small = Counting(tiny("llama", layers=1))
        drafter = ModelDrafter(small, whole.info, keep_prefixes=kept)
        engine = Engine(whole, drafter, Keyed(), Fixed(3))
        tokens, counts, texts = list(text(60)), [], []
        for _ in range(3):
            before, one = small.fed, Request(tokens, Sampling(max_tokens=10))
            engine.add(one)
            while not engine.idle:
                engine.step()
            tokens = [*one.tokens, 3, 4]
            counts.append(small.fed - before)
            texts.append(one.output)
        engine.close()
        assert not drafter.prefixes.take(tokens)
        fed.append((counts, texts))
    assert fed[0][1] == fed[1][1]
    assert fed[1][0][0] == fed[0][0][0]
    assert all(new < old - 50 for old, new in zip(fed[0][0][1:], fed[1][0][1:], strict=True))
