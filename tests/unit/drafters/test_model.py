"""The draft model: what it reads, how often it runs, and that its q is the distribution it drew from."""

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
from forerun.core.choosing import choose, probs
from forerun.core.draft import Draft
from forerun.core.model import NOTHING, Floats, ForwardInput, Needs
from forerun.core.protocols import Candidate, Controller, DraftingCost, DraftRequest, ModelPlan
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.core.transcript import Transcript
from forerun.drafters.draft_model import ModelSession
from forerun.drafters.head import Head
from forerun.drafters.model import ModelDrafter
from forerun.drafters.model_tree import draw_scores
from forerun.engine import Engine, Method
from forerun.errors import BackendError
from forerun.testing import draft_of
from forerun.verifiers.keyed import Keyed
from forerun.weights.spec import Spec
from tests.unit.backends.tiny import random_tensors, spec_of, text, tiny

VOCAB = 9
LOGITS = random_logits(VOCAB, 4, 2.0)
TARGET = ToyModel(VOCAB, 3, LOGITS).info


class Counted(ToyModel):
    """A toy that notes the rows of each pass."""

    def __init__(self, *, context: int = 100, rows: int = VOCAB) -> None:
        super().__init__(rows, 3, random_logits(rows, 4, 2.0), context=context)
        self.passes: list[list[tuple[int, int]]] = []

    @contextmanager
    def forward(self, inputs: Sequence[ForwardInput], needs: Needs = NOTHING) -> Iterator[ToyOutput]:
        self.passes.append([(len(given.input_tokens), len(given.draft)) for given in inputs])
        with super().forward(inputs, needs) as output:
            yield output


def text_of(tokens: Sequence[int], temperature: float = 0.0, *, keyed: bool = True, seed: int = 1) -> Transcript:
    return Transcript(Request(tokens, Sampling(temperature=temperature), seed=seed), keyed=keyed)


def proposed(drafter: ModelDrafter, transcript: Transcript, nodes: int) -> Draft:
    """The draft of a fresh session."""
    return draft_of(drafter, drafter.open(transcript), nodes)


class Live:
    """One session and what it proposes."""

    def __init__(self, drafter: ModelDrafter, transcript: Transcript) -> None:
        self.drafter, self.session = drafter, drafter.open(transcript)

    def propose(self, nodes: int, path: Sequence[int] = ()) -> Draft:
        return draft_of(self.drafter, self.session, nodes, path)


def drafter(model: ToyModel, width: int = 1, threshold: float = 0.0, chunk: int = 64, depth: int = 0) -> ModelDrafter:
    return ModelDrafter(model, TARGET, width=width, threshold=threshold, chunk=chunk, depth=depth)


def plainly(tokens: Sequence[int], count: int, temperature: float) -> list[int]:
    """What the model itself would write."""
    text = text_of(tokens, temperature)
    for _ in range(count):
        row = LOGITS(tuple(text.tokens[-3:]))
        text.add(choose(row, text.prefix(), text.request.sampling, VOCAB, text.token_stream))
    return text.output


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_chain_is_what_the_model_itself_would_write(temperature: float) -> None:
    asked = text_of([1, 2, 3, 4], temperature)
    session = Live(drafter(Counted()), asked)
    draft = session.propose(5)
    assert draft.is_chain
    assert list(draft.tokens) == plainly(asked.tokens, 5, temperature)
    assert draft.q is None


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_tree_holds_what_the_model_would_write_first(width: int, temperature: float) -> None:
    """First children are the model's own choices, after every node, so its KV held the right path at each."""
    asked = text_of([1, 2, 3, 4], temperature)
    session = Live(drafter(Counted(), width), asked)
    for _ in range(4):
        draft = session.propose(9)
        assert not draft.is_chain
        for node in range(-1, len(draft)):
            if draft.children(node):
                path = [draft.tokens[step] for step in draft.path_to(node)]
                row = LOGITS((*asked.tokens, *path)[-3:])
                own = choose(row, asked.prefix(path), asked.request.sampling, VOCAB, asked.token_stream)
                assert draft.tokens[draft.children(node)[0]] == own
        asked.add(draft.tokens[1])
        asked.add(7)


def test_one_row_a_pass_after_the_text_is_read() -> None:
    model = Counted()
    asked = text_of([1, 2, 3, 4])
    session = Live(drafter(model), asked)
    draft = session.propose(4)
    assert model.passes == [[(4, 0)], [(1, 0)], [(1, 0)], [(1, 0)]]
    # All four accepted: the last of them and the bonus are unread.
    for token in (*draft.tokens, 0):
        asked.add(token)
    model.passes.clear()
    session.propose(1)
    assert model.passes == [[(2, 0)]]
    # One of two accepted, then another token: the KV is cut back and reads just that token.
    draft = session.propose(3)
    asked.add(draft.tokens[0])
    asked.add((draft.tokens[1] + 1) % VOCAB)
    model.passes.clear()
    session.propose(1)
    assert model.passes == [[(1, 0)]]


def test_a_tree_has_as_many_passes_as_levels() -> None:
    model = Counted()
    draft = proposed(drafter(model, 3), text_of([1, 2, 3]), 12)
    assert len(model.passes) in (max(draft.depths), max(draft.depths) + 1)
    model.passes.clear()
    shallow = proposed(drafter(model, 3, depth=2), text_of([1, 2, 3]), 12)
    assert max(shallow.depths) == 2
    assert len(model.passes) == 2


def test_long_texts_are_read_in_chunks_and_sessions_share_passes() -> None:
    model = Counted()
    draft_model = drafter(model, chunk=10)
    asked = [text_of(list(range(8)) * 4), text_of([1, 2]), text_of([3] * 15)]
    sessions = [draft_model.open(text) for text in asked]
    assert [session.unread for session in sessions] == [32, 2, 15]
    wanted = [DraftRequest(session, nodes) for session, nodes in zip(sessions, [3, 2, 0], strict=True)]
    drafts = draft_model.propose(wanted)
    assert [len(d) for d in drafts] == [3, 2, 0]
    assert model.passes == [[(10, 0)]] * 3 + [[(2, 0), (2, 0)], [(1, 0), (1, 0)], [(1, 0)]]
    assert list(drafts[0].tokens) == plainly(asked[0].tokens, 3, 0.0)


def test_it_stops_drafting_at_its_context() -> None:
    model = Counted(context=10)
    asked = text_of([1, 2, 3, 4, 5, 6, 7])
    session = Live(drafter(model), asked)
    lengths = []
    for token in (0, 1, 2, 3, 4):
        draft = session.propose(8)
        lengths.append(max(draft.depths, default=0))
        asked.add(token)
    assert lengths == [4, 3, 2, 1, 0]


def test_a_token_it_does_not_know_ends_its_drafting() -> None:
    asked = text_of([1, 2, 3])
    session = Live(drafter(Counted(rows=7)), asked)
    assert len(session.propose(3)) == 3
    assert len(session.propose(3, (8,))) == 0
    asked.add(8)
    assert len(session.propose(3)) == 0


def test_padding_is_never_proposed_and_q_has_the_targets_width() -> None:
    wide = ModelDrafter(Counted(rows=14), replace(TARGET, usable_vocab=6), width=3)
    draft = proposed(wide, text_of([1, 2, 3], 5.0, keyed=False), 12)
    assert draft.q is not None
    assert max(draft.tokens) < 6
    assert all(q is not None and q.shape == (VOCAB,) and not q[6:].any() for q in draft.q)


@pytest.mark.parametrize("width", [1, 3])
def test_q_is_the_distribution_that_was_drawn_from(width: int) -> None:
    """Over many seeds, first children of the root are distributed as q, second ones as q without the first."""
    count = 1200
    model, p = ToyModel(VOCAB, 3, LOGITS), np.zeros((2, VOCAB))
    expected = np.zeros((2, VOCAB))
    for seed in range(count):
        asked = text_of([1, 2, 3], 1.0, keyed=False, seed=seed)
        session = Live(drafter(model, width, depth=1), asked)
        draft = session.propose(width)
        assert draft.q is not None
        q = draft.q[0]
        assert q is not None
        np.testing.assert_array_equal(q, probs(LOGITS((1, 2, 3)), asked.prefix(), asked.request.sampling, VOCAB))
        for rank, token in enumerate(draft.tokens[:2]):
            p[rank, token] += 1.0 / count
            expected[rank] += q / count
            q = q.copy()
            q[token] = 0.0
            q /= q.sum()
    assert np.abs(p - expected).max() < 0.05


def test_draws_are_independent_below_different_nodes_and_between_steps_for_ratio_rules() -> None:
    """All ids are as likely, so a draw is the noise alone: siblings' children must not repeat one another."""
    flat = ToyModel(200, 1, lambda path: np.zeros(200, dtype=np.float32))
    drafts: list[Draft] = []
    for keyed in (True, False):
        asked = text_of([1, 2], 1.0, keyed=keyed)
        session = Live(ModelDrafter(flat, flat.info, width=3, depth=2), asked)
        drafts.append(session.propose(12))
        asked.add(5)
        drafts.append(session.propose(1))
    shared, shared_later, ratio, ratio_later = drafts
    nieces = [[draft.tokens[c] for c in draft.children(node)] for draft in (shared, ratio) for node in (0, 1)]
    assert nieces[0] == nieces[1]
    assert nieces[2] != nieces[3]
    assert shared_later.tokens[0] == nieces[0][0]
    assert ratio_later.tokens[0] not in (nieces[2][0], nieces[3][0])


def test_the_threshold_keeps_the_weak_token_and_stops_after_it() -> None:
    model = Counted()
    whole = proposed(drafter(model), text_of([1, 2, 3]), 8)
    assert whole.scores is not None
    reach = np.cumprod(whole.scores)
    threshold = float(reach[2] + reach[1]) / 2
    stopped = proposed(drafter(model, threshold=threshold), text_of([1, 2, 3]), 8)
    assert stopped.tokens == whole.tokens[:3]


def test_the_scores_of_draws_look_at_no_later_draw() -> None:
    q = np.array([0.5, 0.3, 0.2, 0.0])
    one, other = draw_scores(q, np.array([0, 1])), draw_scores(q, np.array([0, 2]))
    assert one == other
    assert one == sorted(one, reverse=True)
    assert len(draw_scores(np.array([1.0, 0.0]), np.array([0, 1]))) == 1


def test_numbers_that_are_not_numbers_end_the_draft_quietly() -> None:
    broken = ToyModel(VOCAB, 1, lambda path: np.full(VOCAB, np.nan, dtype=np.float32))
    assert len(proposed(drafter(broken), text_of([1, 2]), 4)) == 0


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
    asked = text_of([1, 2, 3])
    session = Live(drafter(Failing(), width), asked)
    with pytest.raises(BackendError):
        session.propose(9)
    fresh = Live(drafter(Counted(), width), asked)
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
@pytest.mark.parametrize("keyed", [True, False])
def test_a_stage_changes_the_passes_not_the_draft(width: int, temperature: float, keyed: bool) -> None:
    """The stage is the same model one token of context short, so it is right often, and never changes anything."""
    alone, helped = Counted(), Counted()
    near = ToyModel(VOCAB, 3, lambda path: LOGITS(path) + random_logits(VOCAB, 5, 0.4)(path[-1:]))
    staged = ModelDrafter(helped, TARGET, width=width, stage=drafter(near, 2))
    texts = [text_of([1, 2, 3], temperature, keyed=keyed) for _ in range(2)]
    sessions = [Live(drafter(alone, width), texts[0]), Live(staged, texts[1])]
    for token in (4, 4, 0, 1, 8, 2):
        drafts = [session.propose(8) for session in sessions]
        assert tree_of(drafts[0]) == tree_of(drafts[1])
        for asked in texts:
            asked.add(drafts[0].tokens[0])
            asked.add(token)
    passes = [len(alone.passes), len(helped.passes)]
    assert passes[1] < 0.8 * passes[0]


def test_stages_can_be_stacked() -> None:
    bottom = drafter(Counted())
    middle = ModelDrafter(Counted(), TARGET, stage=bottom)
    top = Counted()
    stack = ModelDrafter(top, TARGET, stage=middle, stage_tokens=3)
    asked = text_of([1, 2, 3], 0.8)
    session = stack.open(asked)
    assert session.unread == 9  # three tokens for each of three models
    draft = draft_of(stack, session, 8)
    assert list(draft.tokens) == plainly([1, 2, 3], 8, 0.8)
    # Each pass reads three guesses, all right: four levels a pass.
    assert len(top.passes) == 2
    assert stack.name == "model:toy<model:toy<model:toy"
    session.close()
    stack.close()


def test_a_restricted_head_proposes_its_ids_only() -> None:
    """Rows of a model whose head covers four ids are put where those belong."""
    head = np.array([8, 1, 5, 2])
    model = ToyModel(VOCAB, 3, lambda path: LOGITS(path)[head])
    asked = text_of([1, 2, 3], 1.0, keyed=False)
    draft = proposed(ModelDrafter(model, TARGET, width=3, head=Head(head, VOCAB)), asked, 10)
    assert set(draft.tokens) <= set(head.tolist())
    assert draft.q is not None
    q = draft.q[0]
    assert q is not None
    expected = np.full(VOCAB, -np.inf, dtype=np.float32)
    expected[head] = LOGITS((1, 2, 3))[head]
    np.testing.assert_array_equal(q, probs(expected, asked.prefix(), asked.request.sampling, VOCAB))


class Counting:
    """A model that notes how many tokens its passes read."""

    def __init__(self, model: ReferenceModel) -> None:
        self._model, self.info, self.read = model, model.info, 0

    def forward(self, inputs: Sequence[ForwardInput], needs: Needs = NOTHING) -> Any:
        self.read += sum(len(given.input_tokens) + len(given.draft) for given in inputs)
        return self._model.forward(inputs, needs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def written(
    target: ReferenceModel, drafter: ModelDrafter | None, controller: Controller, temperature: float
) -> list[list[int]]:
    """Answers to three prompts, two at a time, read in chunks; the last prompt is the first once more."""
    methods = {} if drafter is None else {"model": Method(model=drafter)}
    engine = Engine(target, methods, [Keyed()], controller, max_sequences=2, prefill_rows=40, keep_prefixes=1)
    sampling = Sampling(temperature=temperature, max_tokens=12)
    sequences = [engine.add(Request(text(90, seed), sampling, seed=seed)) for seed in (1, 2, 1)]
    while not engine.idle:
        engine.step()
    assert engine.speculator.failures() == {}
    return [sequence.output for sequence in sequences]


def first_layers_of(spec: Spec, tensors: dict[str, Floats]) -> Counting:
    return Counting(ReferenceModel(replace(spec, layers=2, sliding=spec.sliding[:2]), tensors, threads=1))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_targets_first_layers_draft_from_its_own_keys_and_read_no_text(temperature: float) -> None:
    spec = spec_of("llama")
    tensors = random_tensors(spec)
    whole = ReferenceModel(spec, tensors, threads=1)
    plain = written(whole, None, Fixed(0), temperature)
    read = []
    for borrows in (False, True):
        first = first_layers_of(spec, tensors)
        drafter = ModelDrafter(first, whole.info, borrows=borrows)
        assert written(whole, drafter, Fixed(3), temperature) == plain
        read.append(first.read)
    assert read[0] - read[1] >= 3 * 85


def test_what_borrows_has_nothing_to_read() -> None:
    spec = spec_of("llama")
    first = first_layers_of(spec, random_tensors(spec))
    asked = text_of(text(20))
    assert ModelDrafter(first, first.info, borrows=True).open(asked).unread == 0
    assert ModelDrafter(first, first.info).open(asked).unread == 20


def test_goodput_is_told_of_real_steps_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the target has read a prompt there is nothing to borrow, and what takes no time says nothing of a level."""
    spec = spec_of("llama")
    tensors = random_tensors(spec)
    whole = ReferenceModel(spec, tensors, threads=1)
    goodput = Goodput(CostCurve({1: 1.0, 64: 1.0}), 4, CostCurve({1: 0.01}))
    told: list[int] = []
    spent = goodput.model_use.spent

    def spy(candidates: Sequence[Candidate], plan: ModelPlan, cost: DraftingCost) -> float:
        if any(plan.levels):
            told.append(cost.levels)
            assert not any(cost.read)
        return spent(candidates, plan, cost)

    monkeypatch.setattr(goodput.model_use, "spent", spy)
    drafter = ModelDrafter(first_layers_of(spec, tensors), whole.info, borrows=True)
    assert written(whole, drafter, goodput, 0.0) == written(whole, None, Fixed(0), 0.0)
    assert told
    assert all(told)


def test_the_next_turn_reads_only_what_is_new() -> None:
    """A draft model's KV of an ended text is kept for one that starts the same, as the target's is."""
    spec = spec_of("llama")
    tensors = random_tensors(spec)
    read = []
    for kept in (0, 1):
        whole = ReferenceModel(spec, tensors, threads=1)
        small = Counting(tiny("llama", layers=1))
        drafter = ModelDrafter(small, whole.info, keep_prefixes=kept)
        engine = Engine(whole, {"model": Method(model=drafter)}, [Keyed()], Fixed(3))
        tokens, counts, texts = list(text(60)), [], []
        for _ in range(3):
            before = small.read
            one = engine.add(Request(tokens, Sampling(max_tokens=10)))
            while not engine.idle:
                engine.step()
            tokens = [*one.tokens, 3, 4]
            counts.append(small.read - before)
            texts.append(one.output)
        engine.close()
        assert not drafter.source.prefixes.take(tokens)
        read.append((counts, texts))
    assert read[0][1] == read[1][1]
    assert read[1][0][0] == read[0][0][0]
    assert all(new < old - 50 for old, new in zip(read[0][0][1:], read[1][0][1:], strict=True))


def test_a_text_that_is_given_up_keeps_nothing() -> None:
    drafter = ModelDrafter(ToyModel(VOCAB, 3, LOGITS), TARGET, keep_prefixes=2)
    for finishes in (False, True):
        session = drafter.open(text_of([1, 2, 3, 4] * 10))
        assert isinstance(session, ModelSession)
        draft_of(drafter, session, 3)
        if finishes:
            session.finish()
        session.close()
        assert len(drafter.source.prefixes) == int(finishes)
    assert drafter.open(text_of([1, 2, 3, 4] * 10)).unread == 1


def test_what_a_request_asks_for_goes_before_what_the_drafter_was_built_with() -> None:
    """Fewer levels, and the higher of two thresholds."""
    built = drafter(Counted(), 3, threshold=0.1, depth=3)
    session = built.open(text_of([1, 2, 3]))

    def shape(**wanted: Any) -> tuple[int, float]:
        [draft] = built.propose([DraftRequest(session, 40, **wanted)])
        assert draft.scores is not None
        reach: list[float] = []
        for node, parent in enumerate(draft.parents):
            reach.append(draft.scores[node] * (1.0 if parent < 0 else reach[parent]))
        continued = [reach[parent] for parent in draft.parents if parent >= 0]
        return max(draft.depths), min(continued, default=1.0)

    assert shape()[0] == 3
    assert shape(depth=2)[0] == 2
    assert shape(depth=9)[0] == 3
    assert 0.1 <= shape()[1] < 0.2 <= shape(min_probability=0.2)[1]
    assert shape(min_probability=0.05) == shape()


def test_no_levels_are_no_passes() -> None:
    model = Counted()
    built = drafter(model)
    [draft] = built.propose([DraftRequest(built.open(text_of([1, 2, 3])), 8, depth=0)])
    assert (len(draft), model.passes) == (0, [])
