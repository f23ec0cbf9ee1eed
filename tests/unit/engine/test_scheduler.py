"""Who takes part in a pass: prompts share what is left of it, all who decode always do, and memory is never passed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from forerun.backends.toy import ToyKV, ToyModel
from forerun.controllers import Fixed
from forerun.core.prefix_cache import PrefixCache
from forerun.core.protocols import Candidate, ModelPlan
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.drafters.model import ModelDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.engine import Engine, Method
from forerun.engine import Sequence as Running
from forerun.engine.scheduler import Scheduler, Turn
from forerun.verifiers.keyed import Keyed
from tests.unit.engine.toys import LOGITS, VOCAB, OracleDrafter, drain, engine_of, model, outputs, plain, requests, run


class Wide(Fixed):
    """Always so many nodes, and a model beside the others at every second length of a text."""

    def plan(self, candidates: Sequence[Candidate]) -> ModelPlan:
        return ModelPlan([4 * (len(one.transcript.tokens) % 2) for one in candidates])


def waiting(prompt: int, written: int = 0) -> Running:
    one = Running(Request([1] * prompt, Sampling(max_tokens=None)), Keyed())
    for _ in range(written):
        one.add(2)
    return one


def scheduler(target: ToyModel | None = None, kept: int = 0, **options: Any) -> Scheduler:
    target = target or model()
    sizes: dict[str, Any] = {"max_sequences": 8, "prefill_rows": 10, "shared_rows": 10, "wants_hidden": False}
    return Scheduler(target, PrefixCache(kept, target.info), **{**sizes, **options})


def add(chosen: Scheduler, *sequences: Running) -> None:
    for one in sequences:
        chosen.add(one)


def commit(turns: Sequence[Turn], target: ToyModel) -> None:
    """Run a pass without drafts; whoever decodes writes a token."""
    for turn in turns:
        kv = turn.sequence.kv
        assert isinstance(kv, ToyKV)
        kv.slots += turn.input_tokens
        kv.length = len(kv.slots)
        if turn.decodes:
            turn.sequence.add(3)
    assert target.room().free >= 0


def taken(turns: Sequence[Turn]) -> dict[Running, int]:
    return {turn.sequence: len(turn.input_tokens) for turn in turns}


# Rows.


def test_admits_oldest_first_up_to_the_limit() -> None:
    chosen = scheduler(max_sequences=2)
    asked = [waiting(3) for _ in range(3)]
    add(chosen, *asked)
    chosen.schedule()
    assert (chosen.live, list(chosen.waiting)) == (asked[:2], asked[2:])
    chosen.remove(asked[0])
    chosen.schedule()
    assert (chosen.live, list(chosen.waiting)) == (asked[1:], [])


def test_prompts_share_the_rows_and_decoding_goes_on() -> None:
    target = model()
    chosen = scheduler(target)
    decoding, long, short, late = waiting(8), waiting(25), waiting(4), waiting(5)
    add(chosen, decoding)
    commit(chosen.schedule()[0], target)
    add(chosen, long, short, late)
    turns = chosen.schedule()[0]
    # Half to the first, what it needs to the one nearest to its end, the rest to the first again.
    assert taken(turns) == {decoding: 1, long: 6, short: 4}
    assert [turn.decodes for turn in turns] == [True, False, True]
    commit(turns, target)
    turns = chosen.schedule()[0]
    assert taken(turns) == {decoding: 1, long: 5, short: 1, late: 5}
    assert [turn.decodes for turn in turns] == [True, False, True, True]


def test_the_last_chunk_of_a_prompt_decodes() -> None:
    target = model()
    chosen = scheduler(target)
    add(chosen, waiting(25))
    chunks = []
    for _ in range(4):
        turns, _ = chosen.schedule()
        chunks += [(len(turn.input_tokens), turn.decodes) for turn in turns]
        commit(turns, target)
    assert chunks == [(10, False), (10, False), (5, True), (1, True)]


def test_fewer_rows_of_prompts_where_others_wait_for_the_pass() -> None:
    target = model()
    chosen = scheduler(target, prefill_rows=16, shared_rows=3)
    decoding, long = waiting(8), waiting(60)
    add(chosen, long)
    assert taken(chosen.schedule()[0]) == {long: 16}
    commit(chosen.schedule()[0], target)
    add(chosen, decoding)
    # Both read: nobody waits.
    turns = chosen.schedule()[0]
    assert taken(turns) == {long: 8, decoding: 8}
    commit(turns, target)
    # Only now does one wait for what the other reads.
    turns = chosen.schedule()[0]
    assert taken(turns) == {long: 3, decoding: 1}
    while long.unread > 1:
        commit(turns, target)
        turns = chosen.schedule()[0]
    assert taken(turns) == {long: 1, decoding: 1}
    another = waiting(30)
    add(chosen, another)
    assert taken(chosen.schedule()[0]) == {long: 1, decoding: 1, another: 3}


def test_one_token_prompts_are_read_in_any_pass() -> None:
    target = model()
    chosen = scheduler(target, shared_rows=0)
    add(chosen, waiting(1), waiting(1), waiting(4))
    assert [len(turn.input_tokens) for turn in chosen.schedule()[0]] == [1, 1]


# Memory.


def test_a_sequence_is_let_in_where_there_are_pages_for_all_of_its_prompt() -> None:
    target = model(pages=10, page=4)
    chosen = scheduler(target, prefill_rows=100)
    first, second, third = waiting(14), waiting(17), waiting(4)
    add(chosen, first, second, third)
    turns, _ = chosen.schedule()
    # 4 and 5 pages, and one each for what they will soon write; for the third none is left.
    assert chosen.live == [first, second]
    commit(turns, target)
    assert chosen.schedule()[1] == []
    assert list(chosen.waiting) == [third]
    chosen.release(first)
    chosen.remove(first)
    chosen.schedule()
    assert chosen.live == [second, third]


def test_who_came_later_does_not_pass_one_that_is_too_large_now() -> None:
    target = model(pages=10, page=4)
    chosen = scheduler(target, prefill_rows=100)
    large, small = waiting(20), waiting(2)
    add(chosen, waiting(22), large, small)
    chosen.schedule()
    assert list(chosen.waiting) == [large, small]
    assert large.kv is None


def test_the_youngest_is_set_back_when_pages_run_short() -> None:
    target = model(pages=6, page=4)
    chosen = scheduler(target, prefill_rows=100)
    first, second = waiting(7), waiting(6)
    add(chosen, first, second)
    set_back: list[Running] = []
    for _ in range(40):
        turns, back = chosen.schedule()
        set_back += back
        if back:
            break
        commit(turns, target)
    assert set_back == [second]
    assert (chosen.live, list(chosen.waiting)) == ([first], [second])
    assert second.kv is None
    assert second.tokens[:6] == [1] * 6
    assert second.generated > 0
    assert [turn.sequence for turn in turns] == [first]


def test_one_that_was_set_back_goes_first_and_reads_its_own_text_again() -> None:
    target = model(pages=6, page=4)
    chosen = scheduler(target, prefill_rows=100)
    first, second, third = waiting(7), waiting(6), waiting(2)
    add(chosen, first, second)
    while not chosen.schedule()[1]:
        commit(chosen.schedule()[0], target)
    add(chosen, third)
    assert list(chosen.waiting) == [second, third]
    chosen.release(first)
    chosen.remove(first)
    turns, _ = chosen.schedule()
    assert chosen.live == [second, third]
    assert (turns[0].input_tokens, turns[0].decodes) == (tuple(second.tokens), True)
    # What was read again is no prefix that was kept.
    assert second.cached == 0


def test_the_last_one_is_never_set_back() -> None:
    target = model(pages=3, page=4)
    chosen = scheduler(target)
    add(chosen, waiting(10))
    for _ in range(3):
        turns, back = chosen.schedule()
        assert (len(turns), back) == (1, [])
        commit(turns, target)


def test_kept_prefixes_are_given_up_before_anybody_is_set_back_or_waits() -> None:
    target = model(pages=14, page=4)
    engine = engine_of(target=target, keep_prefixes=3, prefill_rows=100)
    for start in range(3):
        run(engine, [Request([start, *[1] * 17], Sampling(max_tokens=1))])
    assert len(engine.prefixes) == 2  # a third was given up for the last of them
    first = engine.add(Request([5] * 18, Sampling(max_tokens=4)))
    second = engine.add(Request([6] * 18, Sampling(max_tokens=4)))
    engine.step()
    assert engine.scheduler.live == [first, second]
    assert all(engine.prefixes.take([start, *[1] * 17], "") is None for start in range(3))


@pytest.mark.parametrize(("free", "nodes"), [(0, [1, 3]), (1, [5, 3]), (2, [5, 7])])
def test_drafts_get_what_is_left_of_pages_and_then_one_more_each(free: int, nodes: list[int]) -> None:
    target = model(pages=5 + free, page=4)
    chosen = scheduler(target, prefill_rows=100)
    one, other = waiting(10, 1), waiting(4, 1)
    for live in (one, other):
        chosen.live.append(live)
        live.kv = target.open()
        live.kv.slots, live.kv.length = live.tokens[:-1], len(live.tokens) - 1
    turns, _ = chosen.schedule()
    # 11 tokens fill 3 pages but for one place; 5 tokens fill 2 but for three.
    assert target.room().free == free + 1
    assert [turn.nodes for turn in turns] == nodes


def test_after_an_interrupt_nobody_is_in_two_places() -> None:
    chosen = scheduler()
    one, other, third = waiting(1), waiting(1), waiting(1)
    chosen.live = [one, one, other]
    chosen.waiting.extend([other, third, third])
    chosen.recover()
    assert (chosen.live, list(chosen.waiting)) == ([one, other], [third])


# Through the engine.


def long_requests(count: int, **sampling: Any) -> list[Request]:
    chosen = Sampling(**{"max_tokens": 60, "temperature": 0.9} | sampling)
    return [Request([1 + i % 7] * (10 + i % 5), chosen, seed=i, id=str(i)) for i in range(count)]


@pytest.mark.parametrize("drafts", ["none", "ngram", "oracle", "model"])
@pytest.mark.parametrize("kept", [0, 4])
def test_sixteen_long_requests_in_memory_for_four_all_finish_with_their_own_texts(drafts: str, kept: int) -> None:
    asked = long_requests(16)
    expected = [outputs(run(engine_of(), [request]))[0] for request in asked]
    texts = {request.id: [*request.prompt, *output] for request, output in zip(asked, expected, strict=True)}
    # 74 tokens at most: 10 pages each.
    target, small = model(pages=40, page=8), ToyModel(VOCAB, 2, LOGITS)
    methods = {
        "none": {},
        "ngram": {"ngram": Method(cheap=NgramDrafter())},
        "oracle": {"oracle": Method(cheap=OracleDrafter(texts, 1000))},
        "model": {"model": Method(model=ModelDrafter(small, target.info))},
    }[drafts]
    engine = Engine(target, methods, [Keyed()], Wide(8), max_sequences=16, prefill_rows=32, keep_prefixes=kept)
    sequences = [engine.add(request) for request in asked]
    least = target.room().free

    def check() -> None:
        nonlocal least
        least = min(least, target.room().free)
        assert target.room().free >= 0

    drain(engine, check)
    assert outputs(sequences) == expected
    assert [sequence.finish_reason for sequence in sequences] == ["length"] * 16
    assert engine.speculator.failures() == {}
    assert least < 8  # memory was really short
    engine.prefixes.clear()
    assert target.room().free == 40


def test_one_that_was_set_back_goes_on_with_the_same_text() -> None:
    asked = long_requests(3, logprobs=2)
    expected = [run(engine_of(), [request])[0] for request in asked]
    drafter = OracleDrafter({one.request.id: one.tokens for one in expected}, 3)
    target = model(pages=18, page=8)
    engine = engine_of(drafter, 6, target)
    sequences = [engine.add(request) for request in asked]
    drain(engine)
    assert outputs(sequences) == outputs(expected)
    assert [sequence.logprobs for sequence in sequences] == [sequence.logprobs for sequence in expected]
    # Its drafters' sessions were given up with its pages, and opened anew.
    assert len(drafter.sessions) > 3
    assert all(session.closed for session in drafter.sessions)
    assert sum(session.finished for session in drafter.sessions) == 3


def test_one_that_memory_has_no_room_for_ends_as_at_the_end_of_a_context() -> None:
    target = model(pages=4, page=8)
    [sequence] = run(engine_of(NgramDrafter(), 8, target), [Request([1, 2, 3], Sampling(max_tokens=None))])
    assert (len(sequence.tokens), sequence.finish_reason) == (32, "length")
    asked = Request([1, 2, 3], Sampling(max_tokens=29))
    assert sequence.output == outputs(run(engine_of(), [asked]))[0]


def test_a_long_prompt_does_not_stop_the_others_from_writing() -> None:
    engine = engine_of(prefill_rows=4)
    short = engine.add(requests()[0])
    engine.step()
    engine.add(Request([1] * 60))
    for _ in range(10):
        before = short.generated
        engine.step()
        assert short.generated == before + 1


def test_plain_texts_are_those_of_unlimited_memory() -> None:
    target = model(pages=12, page=4)
    assert outputs(run(engine_of(target=target, max_sequences=6), requests(6, max_tokens=20))) == plain(
        6, max_tokens=20
    )
