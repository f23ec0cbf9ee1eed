"""A target that cannot make a pass: what was done for speed is given up first, then only what fails alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from forerun.backends.toy import ToyKV, ToyModel, ToyOutput
from forerun.core.model import NOTHING, ForwardInput, Needs
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.drafters.ngram import NgramDrafter
from forerun.engine import Engine
from forerun.errors import BackendError
from tests.unit.engine.toys import (
    LOGITS,
    VOCAB,
    Breaking,
    OracleDrafter,
    drain,
    engine_of,
    model,
    outputs,
    plain,
    requests,
    run,
    whole,
)

FULL = BackendError("out of memory")
Fails = Callable[[int, Sequence[ForwardInput]], BaseException | None]


def with_drafts(number: int, inputs: Sequence[ForwardInput]) -> BaseException | None:
    return FULL if any(len(given.draft) for given in inputs) else None


def together(number: int, inputs: Sequence[ForwardInput]) -> BaseException | None:
    return FULL if len(inputs) > 1 else None


def holding(token: int) -> Fails:
    """Passes in which a text with this token takes part."""

    def fails(number: int, inputs: Sequence[ForwardInput]) -> BaseException | None:
        kvs = [given.kv for given in inputs]
        assert all(isinstance(kv, ToyKV) for kv in kvs)
        texts = [[*kv.slots, *given.input_tokens] for kv, given in zip(kvs, inputs, strict=True)]  # type: ignore[attr-defined]
        return FULL if any(token in text for text in texts) else None

    return fails


def breaking(fails: Fails, *, drafter: OracleDrafter | None = None, **options: int) -> tuple[Engine, Breaking]:
    target = Breaking(fails)
    return engine_of(drafter or OracleDrafter(whole(3), 1000), 8, target, keep_prefixes=2, **options), target


def test_what_fails_with_drafts_but_not_without_is_written_plainly() -> None:
    drafter = OracleDrafter(whole(3), 1000)
    engine, target = breaking(with_drafts, drafter=drafter)
    sequences = run(engine, requests(3))
    assert outputs(sequences) == plain(3)
    assert [sequence.finish_reason for sequence in sequences] == ["length"] * 3
    assert all(sequence.stats.drafted == 0 for sequence in sequences)
    # Every step but the last one (of an answer's last token) was tried with drafts.
    assert target.passes > 2 * 38
    assert engine.speculator.failures() == {}
    # What drafters held was given up each time, for memory.
    assert all(session.closed for session in drafter.sessions)
    assert len(drafter.sessions) > 38


def test_what_fails_for_several_but_not_alone_is_written_one_by_one() -> None:
    engine, _ = breaking(together)
    sequences = run(engine, requests(3))
    assert outputs(sequences) == plain(3)
    assert [sequence.finish_reason for sequence in sequences] == ["length"] * 3


def test_what_fails_alone_ends_with_its_reason_and_the_others_go_on() -> None:
    token = 7
    asked = [Request([1, 2, token], Sampling(max_tokens=30)), *requests(2, max_tokens=30, logit_bias={token: -1e6})]
    engine, _ = breaking(holding(token), drafter=OracleDrafter({"": [], **whole(2)}))
    expected = outputs(run(engine_of(), asked[1:]))
    sequences = [engine.add(request) for request in asked]
    ended = [result.sequence for result in drain(engine) if result.sequence is sequences[0]]
    assert (sequences[0].finish_reason, sequences[0].error) == ("error", FULL)
    assert len(ended) == 1
    assert sequences[0].generated == 0
    assert sequences[0].kv is None
    assert outputs(sequences[1:]) == expected


def test_a_failure_in_the_middle_of_an_answer_keeps_what_was_written() -> None:
    [expected] = plain()
    at = next(i for i, token in enumerate(expected) if i > 5 and token not in [1, 2, 3, *expected[:i]])
    engine, _ = breaking(holding(expected[at]))
    [sequence] = run(engine, requests())
    assert sequence.finish_reason == "error"
    # The token itself was written; the pass that would read it fails.
    assert sequence.output == expected[: at + 1]
    assert len(sequence.output) == sequence.stats.tokens


def test_kept_prefixes_are_given_up_where_a_pass_fails() -> None:
    engine, target = breaking(lambda number, inputs: FULL if target_fails else None)
    target_fails = False
    run(engine, [Request([i % VOCAB for i in range(40)], Sampling(max_tokens=3), id="0")])
    assert len(engine.prefixes) == 1
    target_fails = True
    [sequence] = run(engine, [Request([1, 2], id="0")])
    assert sequence.finish_reason == "error"
    assert len(engine.prefixes) == 0
    assert target.passes > 3


def fails_at(at: int) -> Fails:
    return lambda number, inputs: FULL if number == at else None


def test_a_pass_that_fails_once_costs_one_step_without_drafts() -> None:
    expected = plain(3)
    for at in (1, 2, 5, 9):
        engine, _ = breaking(fails_at(at), prefill_rows=4)
        sequences = run(engine, requests(3))
        assert outputs(sequences) == expected
        assert sum(sequence.stats.accepted for sequence in sequences) > 60


def test_what_fails_after_it_was_entered_is_not_tried_again_with_less() -> None:
    """Its tokens are committed, so the step is cut short; the next one reports them and goes on from there."""
    expected = plain(3)
    target = Breaking(lambda number, inputs: FULL if number == 4 else None, when="left")
    engine = engine_of(OracleDrafter(whole(3), 1000), 8, target)
    sequences = [engine.add(request) for request in requests(3)]
    with pytest.raises(BackendError):
        drain(engine)
    assert target.passes == 4
    written = [sequence.generated for sequence in sequences]
    assert [len(result.tokens) for result in engine.step()] == [5, 5, 5]
    assert [sequence.generated for sequence in sequences] == written
    drain(engine)
    assert outputs(sequences) == expected


def test_a_prefix_that_cannot_be_copied_is_read_anew() -> None:
    class NoCopies(ToyKV):
        def fork(self) -> ToyKV:
            raise FULL

    class Opening(ToyModel):
        def open(self) -> ToyKV:
            return NoCopies(self._pages)

    engine = engine_of(NgramDrafter(), 4, Opening(VOCAB, 3, LOGITS), keep_prefixes=2)
    asked = [Request([i % VOCAB for i in range(40)], Sampling(max_tokens=9))] * 2
    first, second = (run(engine, [request])[0] for request in asked)
    assert (second.output, second.cached) == (first.output, 0)
    assert second.finish_reason == "length"


def test_a_target_whose_rows_cannot_be_entered_twice_leaves_no_trace() -> None:
    """Whatever a pass that was refused had begun: `forward` leaves every sequence as it was."""

    class Half(ToyModel):
        fails = 0

        @contextmanager
        def forward(self, inputs: Sequence[ForwardInput], needs: Needs = NOTHING) -> Iterator[ToyOutput]:
            with super().forward(inputs, needs) as output:
                if any(len(given.draft) > 3 for given in inputs):
                    Half.fails += 1
                else:
                    yield output
                    return
            raise FULL

    engine = engine_of(OracleDrafter(whole(3), 1000), 8, Half(VOCAB, 3, LOGITS))
    assert outputs(run(engine, requests(3))) == plain(3)
    assert Half.fails > 10


def test_memory_that_is_full_is_the_same_story() -> None:
    """The toy's own error, in an engine that was told of more memory than there is."""
    target = model(pages=6, page=8)
    engine = engine_of(OracleDrafter(whole(4), 1000), 8, target)
    target.room = lambda: model(pages=60, page=8).room()  # type: ignore[method-assign]
    sequences = run(engine, requests(4))
    for sequence, expected in zip(sequences, plain(4), strict=True):
        assert sequence.output == expected[: sequence.generated]
        assert sequence.finish_reason in ("length", "error")
        if sequence.finish_reason == "error":
            assert "memory is full" in str(sequence.error)
    assert "length" in [sequence.finish_reason for sequence in sequences]
