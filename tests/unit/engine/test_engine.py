"""The loop on the toy: the same text whatever is drafted, KV that follows, requests that end where they should."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import pytest

from forerun.backends.toy import ToyKV, ToyModel, ToyOutput
from forerun.controllers import CostCurve, Fixed, Goodput
from forerun.core.draft import Draft
from forerun.core.model import NOTHING, Floats, ForwardInput, Needs
from forerun.core.noise import Domain, Noise
from forerun.core.protocols import Drafter, Rng, Target
from forerun.core.request import Request, Speculation
from forerun.core.rng import StepRng
from forerun.core.sampling import Sampling
from forerun.core.step import StepResult, Verdict
from forerun.core.transcript import Constraint
from forerun.drafters.model import ModelDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.none import NoneDrafter
from forerun.engine import Engine, Method
from forerun.engine import Sequence as Running
from forerun.errors import PromptError, UsageError
from forerun.verifiers.keyed import Keyed
from forerun.verifiers.rejection import Rejection
from forerun.verifiers.traversal import Traversal
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


def running(result: StepResult) -> Running:
    assert isinstance(result.sequence, Running)
    return result.sequence


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("tree", [True, False])
@pytest.mark.parametrize(("sequences", "prefill"), [(1, 4), (3, 1), (8, 256)])
def test_same_text_whatever_is_drafted(temperature: float, tree: bool, sequences: int, prefill: int) -> None:
    expected = plain(6, temperature=temperature)
    drafters: list[Drafter] = [NoneDrafter(), NgramDrafter(), OracleDrafter(whole(6, temperature=temperature))]
    for drafter in drafters:
        engine = engine_of(
            drafter, 10, model(tree=tree), max_sequences=sequences, prefill_rows=prefill, keep_prefixes=2
        )
        assert outputs(run(engine, requests(6, temperature=temperature))) == expected
        assert engine.speculator.failures() == {}


def test_a_good_drafter_needs_few_steps_and_is_counted() -> None:
    [sequence] = run(engine_of(OracleDrafter(whole(), wrong_every=1000), 8), requests())
    # Four levels a step, each with a wrong sibling first, and the bonus: five tokens a step.
    assert sequence.stats.steps == sequence.stats.spec_steps == 8
    assert sequence.stats.accepted == 32
    assert sequence.stats.mean_acceptance_length == 5.0
    assert sequence.stats.draft_acceptance_rate == 0.5
    assert sequence.stats.histogram == [0, 0, 0, 0, 8]
    assert sequence.stats.per_position_acceptance_rate == [1.0] * 4


def test_without_a_method_it_decodes_plainly() -> None:
    [sequence] = run(engine_of(), requests())
    assert sequence.method == ""
    assert (sequence.stats.steps, sequence.stats.spec_steps) == (40, 0)


@pytest.mark.parametrize("penalty", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_penalties_see_the_true_prefix_inside_a_draft(penalty: str) -> None:
    options: dict[str, Any] = {penalty: 1.7, "temperature": 0.0}
    expected = plain(**options)
    assert expected != plain(temperature=0.0)
    sequences = run(engine_of(OracleDrafter(whole(**options)), 8), requests(**options))
    assert outputs(sequences) == expected
    assert sequences[0].stats.accepted > 0


class EveryThird(Constraint):
    """Only even ids may stand at every third place."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def allowed(self, path: Sequence[int]) -> Any:
        at = len(self.tokens) + len(path)
        return None if at % 3 else np.arange(VOCAB) % 2 == 0

    def commit(self, token: int) -> None:
        self.tokens.append(token)

    def restart(self, tokens: Sequence[int]) -> None:
        self.tokens = list(tokens)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_constraint_is_kept_inside_a_draft_too(temperature: float) -> None:
    [request] = requests(temperature=temperature)
    slow, fast = engine_of(), engine_of(NgramDrafter(), 6)
    written = []
    for engine in (slow, fast):
        sequence = engine.add(request, constraint=EveryThird())
        drain(engine)
        written.append(sequence.output)
    assert written[0] == written[1] != plain(temperature=temperature)[0]
    assert all(token % 2 == 0 for token in written[0][::3])


def test_a_constraint_follows_one_text_after_the_other_and_never_two_at_once() -> None:
    engine, constraint, written = engine_of(), EveryThird(), []
    for request in requests(2):
        sequence = engine.add(request, constraint=constraint)
        with pytest.raises(UsageError, match="one text at a time"):
            engine.add(request, constraint=constraint)
        drain(engine)
        written.append(sequence.output)
    assert all(token % 2 == 0 for output in written for token in output[::3])


def test_stop_token_inside_an_accepted_run_ends_the_text_there() -> None:
    [expected] = plain()
    stop = expected[9]
    end = expected.index(stop)
    [sequence] = run(engine_of(OracleDrafter(whole(), 1000), 16), requests(logprobs=2, stop_ids=[stop]))
    assert sequence.output == expected[: end + 1]
    assert sequence.finish_reason == "stop"
    assert [entry.token_id for entry in sequence.logprobs] == expected[: end + 1]


class Counting:
    """A watcher that ends a text after so many tokens."""

    def __init__(self, most: int) -> None:
        self.most, self.seen = most, 0

    def push(self, token: int) -> bool:
        self.seen += 1
        return self.seen == self.most

    def replay(self, tokens: list[int]) -> int | None:
        self.seen = len(tokens)
        return self.most - 1 if self.seen >= self.most else None


@pytest.mark.parametrize("most", [1, 2, 7])
def test_a_watcher_sees_each_token_once_and_may_end_the_text(most: int) -> None:
    [expected] = plain()
    watcher = Counting(most)
    engine = engine_of(OracleDrafter(whole(), 1000), 16)
    sequence = engine.add(requests()[0], watcher)
    drain(engine)
    assert (sequence.output, sequence.finish_reason) == (expected[:most], "stop")
    assert watcher.seen == most


def test_logprobs_are_those_of_plain_decoding() -> None:
    [slow] = run(engine_of(), requests(logprobs=3))
    [fast] = run(engine_of(OracleDrafter(whole()), 8), requests(logprobs=3))
    assert fast.stats.accepted > 0
    assert fast.logprobs == slow.logprobs
    assert all(len(entry.top) == 3 and entry.logprob <= entry.top[0][1] for entry in fast.logprobs)


def test_what_a_step_reports_adds_up_to_the_text() -> None:
    engine = engine_of(OracleDrafter(whole(3)), 8, prefill_rows=4)
    sequences = [engine.add(request) for request in requests(3, logprobs=0)]
    results = drain(engine)
    for sequence in sequences:
        own = [result for result in results if result.sequence is sequence]
        assert [token for result in own for token in result.tokens] == sequence.output
        assert [entry for result in own for entry in result.logprobs] == sequence.logprobs
        assert sum(len(result.input_tokens) - result.decoded for result in own) == len(sequence.request.prompt) - 1
        assert all(result.rows is None and result.hidden == {} for result in own)


def test_max_tokens_and_context_end_with_length() -> None:
    [sequence] = run(engine_of(NgramDrafter(), 8), requests(max_tokens=7))
    assert (sequence.generated, sequence.finish_reason) == (7, "length")
    [sequence] = run(engine_of(NgramDrafter(), 8, model(context=20)), requests(max_tokens=None))
    assert (len(sequence.tokens), sequence.finish_reason) == (20, "length")


def test_requests_that_can_never_run_are_refused_before_anything_is() -> None:
    engine = engine_of(NoneDrafter(), 0, model(context=30, pages=3, page=5))
    for prompt, says in (
        ([], "empty"),
        ([1] * 30, "holds 30"),
        ([1] * 15, "memory for keys and values holds 15"),
        ([1, VOCAB], f"token id {VOCAB}"),
        ([1, -1], "token id -1"),
    ):
        for refuses in (engine.check, engine.add):
            with pytest.raises(PromptError, match=says):
                refuses(Request(prompt))
    for asked, says in (
        (Speculation(draft="nine"), "unknown draft 'nine'; known: none. Did you mean none"),
        (Speculation(verifier="keyd"), "unknown verifier 'keyd'; known: keyed. Did you mean keyed"),
    ):
        with pytest.raises(UsageError, match=says):
            engine.add(Request([1], speculation=asked))
    assert engine.idle
    engine.check(Request([1] * 14))


# What one request asks for itself.


def methods() -> dict[str, Method]:
    return {
        "oracle": Method(cheap=OracleDrafter(whole(4), 1000)),
        "ngram": Method(cheap=NgramDrafter()),
        "model": Method(model=ModelDrafter(model(2), model().info)),
    }


def asking(*asked: Speculation) -> list[Running]:
    """Four requests in the same passes, each with its own speculation."""
    engine = Engine(model(), methods(), [Keyed(), Rejection(), Traversal()], Fixed(8))
    chosen = [request for request in requests(4) if int(request.id) < len(asked)]
    wanted = [
        Request(request.prompt, request.sampling, seed=request.seed, id=request.id, speculation=own)
        for request, own in zip(chosen, asked, strict=True)
    ]
    sequences = run(engine, wanted)
    assert engine.speculator.failures() == {}
    return sequences


def test_requests_choose_among_the_drafts() -> None:
    sequences = asking(
        Speculation(), Speculation(draft="ngram"), Speculation(draft="model"), Speculation(enabled=False)
    )
    assert outputs(sequences) == plain(4)
    assert [sequence.method for sequence in sequences] == ["oracle", "ngram", "model", ""]
    # The oracle is always right; the others say something else now and then, or nothing.
    lengths = [sequence.stats.mean_acceptance_length for sequence in sequences]
    assert lengths[0] == 5.0
    assert lengths[3] == 1.0
    assert sequences[3].stats.drafted == 0
    assert sequences[2].stats.drafted > 0


def test_requests_choose_among_the_verifiers() -> None:
    """Each keeps its own: the seed's text under keyed, another one under rules that draw otherwise."""
    sequences = asking(Speculation(), Speculation(verifier="rejection"), Speculation(verifier="traversal"))
    assert [sequence.verifier.name for sequence in sequences] == ["keyed", "rejection", "traversal"]
    assert [sequence.keyed for sequence in sequences] == [True, False, False]
    expected = plain(3)
    assert sequences[0].output == expected[0]
    assert all(sequence.output != own for sequence, own in zip(sequences[1:], expected[1:], strict=True))


def test_requests_choose_how_many_nodes_are_drafted() -> None:
    sequences = asking(*(Speculation(num_speculative_tokens=nodes) for nodes in (0, 2, 4, 100)))
    assert outputs(sequences) == plain(4)
    assert [sequence.stats.mean_acceptance_length for sequence in sequences] == [1.0, 2.0, 3.0, 5.0]
    assert sequences[0].stats.drafted == 0


# The randomness of a request, and of a step.


def test_a_rule_is_given_the_randomness_of_its_step() -> None:
    seen: list[tuple[int, int]] = []

    def rng(sequence: Running) -> Rng:
        seen.append((sequence.request.seed, len(sequence.tokens)))
        return StepRng(sequence.noise, len(sequence.tokens))

    engine = Engine(model(), {"ngram": Method(cheap=NgramDrafter())}, [Rejection()], Fixed(4), rng=rng)
    sequences = run(engine, requests(2))
    again = run(Engine(model(), {"ngram": Method(cheap=NgramDrafter())}, [Rejection()], Fixed(4)), requests(2))
    assert outputs(sequences) == outputs(again)
    assert len(seen) == len(set(seen)) == sum(sequence.stats.steps for sequence in sequences)


def test_a_request_is_given_its_noise() -> None:
    engine = engine_of(noise=lambda request: Noise(request.seed + 1))
    asked = requests(1)[0]
    [sequence] = run(engine, [Request(asked.prompt, asked.sampling, seed=4)])
    [other] = run(engine_of(), [Request(asked.prompt, asked.sampling, seed=5)])
    assert sequence.output == other.output
    assert sequence.noise.uniform(Domain.TOKEN, 0, 0) == Noise(5).uniform(Domain.TOKEN, 0, 0)


# Failures of the target's rows, of rules and of watchers end one request.


class Poisoned(ToyModel):
    """NaN logits for texts that contain an id."""

    def __init__(self, poison: int) -> None:
        def logits(path: tuple[int, ...]) -> Floats:
            return np.full(VOCAB, np.nan, dtype=np.float32) if poison in path else LOGITS(path)

        super().__init__(VOCAB, 3, logits)


def test_broken_logits_end_one_request_and_not_the_others() -> None:
    poisoned = Request([7, 7, 7])
    healthy = Request([1, 2, 3], Sampling(max_tokens=20, logit_bias={7: float("-inf")}))
    first, second = run(engine_of(NgramDrafter(), 3, Poisoned(7)), [poisoned, healthy])
    assert first.finish_reason == "error"
    assert "finite" in str(first.error)
    assert (second.finish_reason, second.generated) == ("length", 20)


def test_a_rule_or_a_watcher_that_fails_ends_one_request_with_its_reason() -> None:
    class Failing(Keyed):
        name = "failing"

        def verify(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
            if target.choose(-1) == plain(3)[1][5]:
                raise ZeroDivisionError("on purpose")
            return super().verify(draft, target, rng)

    class Watcher(Counting):
        def push(self, token: int) -> bool:
            super().push(token)
            if self.seen == 3:
                raise LookupError("on purpose")
            return False

    expected = plain(3)
    engine = Engine(model(), {"ngram": Method(cheap=NgramDrafter())}, [Keyed(), Failing()], Fixed(4))
    asked = requests(3)
    asked[1] = Request(asked[1].prompt, asked[1].sampling, seed=1, id="1", speculation=Speculation(verifier="failing"))
    sequences = [engine.add(request, Watcher(99) if request.id == "2" else None) for request in asked]
    ended: list[Running] = []
    while not engine.idle:
        ended += [one for result in engine.step() if (one := running(result)).finished]
    assert sorted(sequence.number for sequence in ended) == [sequence.number for sequence in sequences]
    assert sequences[0].output == expected[0]
    assert isinstance(sequences[1].error, ZeroDivisionError)
    assert isinstance(sequences[2].error, LookupError)
    for sequence, own in zip(sequences[1:], expected[1:], strict=True):
        assert sequence.finish_reason == "error"
        assert sequence.output == own[: sequence.generated]
        assert sequence.kv is None


# Interrupts: see test_fault_drill for every line of a step.


@pytest.mark.parametrize("at", [1, 2, 9])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, MemoryError])
@pytest.mark.parametrize("when", ["entered", "left"])
def test_an_interrupted_pass_can_be_run_again_with_the_same_text(
    at: int, error: type[BaseException], when: Literal["entered", "left"]
) -> None:
    expected = plain(3)
    target = Breaking(lambda number, inputs: error("on purpose") if number == at else None, when=when)
    engine = engine_of(NgramDrafter(), 4, target, prefill_rows=4)
    sequences = [engine.add(request) for request in requests(3)]
    with pytest.raises(error):
        drain(engine)
    assert not engine.idle
    drain(engine)
    assert outputs(sequences) == expected


def test_what_an_interrupted_step_wrote_is_reported_by_the_next() -> None:
    """The tokens were committed, and its caller never heard of them."""

    class Interrupting(Fixed):
        steps = 0

        def observe(self, results: Sequence[StepResult]) -> None:
            self.steps += 1
            if self.steps == 4:
                raise KeyboardInterrupt

    engine = engine_of(OracleDrafter(whole(2), 1000), controller=Interrupting(8))
    sequences = [engine.add(request) for request in requests(2, logprobs=1)]
    reported: dict[Running, list[int]] = {sequence: [] for sequence in sequences}
    ended: list[Running] = []
    for _ in range(100):
        try:
            results = engine.step()
        except KeyboardInterrupt:
            before = [sequence.generated for sequence in sequences]
            assert [len(tokens) for tokens in reported.values()] != before
            continue
        for result in results:
            one = running(result)
            assert len(result.logprobs) == len(result.tokens)
            reported[one] += result.tokens
            ended += [one] if one.finished else []
        if engine.idle:
            break
    assert list(reported.values()) == outputs(sequences) == plain(2)
    assert sorted(one.number for one in ended) == [sequence.number for sequence in sequences]


# What is held, and released.


def test_abort_releases_what_a_request_holds() -> None:
    engine = engine_of(NgramDrafter(), 4, max_sequences=2)
    first, second, third = (engine.add(request) for request in requests(3))
    engine.step()
    kv = first.kv
    assert isinstance(kv, ToyKV)
    engine.abort(first)
    engine.abort(third)
    assert (first.finish_reason, first.kv, kv.length) == ("abort", None, 0)
    drain(engine)
    assert second.finish_reason == "length"
    assert (third.finish_reason, third.generated) == ("abort", 0)
    engine.abort(second)
    assert second.finish_reason == "length"


def test_closing_aborts_what_runs_and_waits_and_closes_the_parts() -> None:
    drafter, target = OracleDrafter(whole(3)), model(pages=100)
    engine = engine_of(drafter, 4, target, max_sequences=2, keep_prefixes=2)
    sequences = [engine.add(request) for request in requests(3)]
    engine.step()
    engine.close()
    assert [sequence.finish_reason for sequence in sequences] == ["abort"] * 3
    assert target.room().free == 100
    assert drafter.closed == 1
    assert engine.idle


@pytest.mark.parametrize("keep", [0, 2])
def test_nothing_is_held_once_all_have_ended(keep: int) -> None:
    drafter, target = OracleDrafter(whole(4)), model(pages=100)
    goodput = Goodput(CostCurve({1: 1.0, 64: 1.0}))
    engine = engine_of(drafter, target=target, controller=goodput, keep_prefixes=keep)
    run(engine, requests(4))
    assert (target.room().free == 100) == (keep == 0)
    assert not goodput._records
    assert not goodput.model_use._records
    assert [(session.finished, session.closed) for session in drafter.sessions] == [(1, 1)] * 4
    engine.prefixes.clear()
    assert target.room().free == 100


# Kept prefixes.


def test_a_text_too_short_to_be_of_use_does_not_take_a_kept_ones_place() -> None:
    engine = engine_of(keep_prefixes=1)
    [first] = run(engine, [Request([i % VOCAB for i in range(40)], Sampling(max_tokens=5))])
    run(engine, [Request([1, 2], Sampling(max_tokens=2))])
    engine.add(Request([*first.tokens, 1, 2], Sampling(max_tokens=5)))
    [result] = engine.step()
    assert len(result.input_tokens) == 3


def test_a_kept_prefix_is_read_once() -> None:
    engine = engine_of(keep_prefixes=1)
    [first] = run(engine, [Request([i % VOCAB for i in range(40)], Sampling(max_tokens=5))])
    asked = Request([*first.tokens, 1, 2], Sampling(max_tokens=5))
    second = engine.add(asked)
    [result] = engine.step()
    # The last token of the first text, which no pass had read, and the two new ones.
    assert len(result.input_tokens) == 3
    assert (first.cached, second.cached) == (0, 44)
    drain(engine)
    assert second.output == outputs(run(engine_of(), [asked]))[0]


def test_prefixes_of_another_memory_are_not_used() -> None:
    engine = engine_of(keep_prefixes=4)
    prompt = [i % VOCAB for i in range(40)]
    run(engine, [Request(prompt, memory="mine")])
    read = [run(engine, [Request(prompt, memory=memory)])[0].cached for memory in ("yours", "mine")]
    assert read == [0, 39]


class Noting(OracleDrafter):
    """Wants hidden states, and notes them with what they should be."""

    def __init__(self, texts: dict[str, list[int]]) -> None:
        super().__init__(texts, needs=Needs((0, 2)))


def hidden_at(tokens: Sequence[int], order: int = 3) -> list[float]:
    """What a toy reports after these tokens."""
    return [float(token) for token in [-1] * (order - len(tokens)) + list(tokens[-order:])]


def test_drafters_see_the_rows_and_hidden_states_of_each_pass() -> None:
    drafted = 0

    class Watching(Fixed):
        def observe(self, results: Sequence[StepResult]) -> None:
            nonlocal drafted
            for result in results:
                draft, count = result.draft, len(result.input_tokens)
                assert list(result.hidden) == [0, 2]
                assert all(len(states) == count + len(draft) for states in result.hidden.values())
                assert (result.rows is not None) == result.decoded
                if result.rows is not None:
                    assert result.rows.shape == (1 + len(draft), VOCAB)
                    drafted += len(draft)
                for node, token in enumerate(draft.tokens):
                    assert result.hidden[2][count + node][-1] == token

    run(engine_of(Noting(whole(2)), controller=Watching(6), prefill_rows=4), requests(2))
    assert drafted > 40


def test_the_hidden_state_at_the_end_of_what_was_read_is_kept() -> None:
    engine = engine_of(Noting(whole(2)), 6, prefill_rows=4)
    sequences = [engine.add(request) for request in requests(2)]

    def check() -> None:
        for sequence in sequences:
            if sequence.kv is not None and sequence.kv.length:
                read = sequence.tokens[: sequence.kv.length]
                assert sequence.hidden.keys() == {0, 2}
                assert sequence.hidden[2].tolist() == hidden_at(read)

    drain(engine, check)


def test_hidden_states_are_known_at_the_end_of_a_kept_prefix() -> None:
    """Where the new prompt goes on from the whole text they are those kept with it; else the last token is read again."""
    engine = engine_of(Noting({"a": [], "b": [], "c": []}), 6, keep_prefixes=4)
    prompt = [(i * 5 + i // 7) % VOCAB for i in range(40)]
    [first] = run(engine, [Request(prompt, Sampling(max_tokens=5), id="a")])
    read = first.tokens[:-1]

    longer = engine.add(Request([*first.tokens, 1], Sampling(max_tokens=3), id="b"))
    [turn], _ = engine.scheduler.schedule()
    assert (len(turn.input_tokens), longer.cached) == (2, len(read))
    assert longer.hidden[2].tolist() == hidden_at(read)
    drain(engine)

    other = (prompt[30] + 1) % VOCAB
    branch = engine.add(Request([*prompt[:30], other, other], Sampling(max_tokens=3), id="c"))
    [turn], _ = engine.scheduler.schedule()
    # One token of the common start is read again, so that its state is known.
    assert (len(turn.input_tokens), branch.cached, branch.hidden) == (3, 29, {})
    drain(engine)
    assert engine.speculator.failures() == {}


def test_where_nobody_wants_hidden_states_none_are_asked_for() -> None:
    asked: list[Needs] = []

    class Watched(ToyModel):
        @contextmanager
        def forward(self, inputs: Sequence[ForwardInput], needs: Needs = NOTHING) -> Iterator[ToyOutput]:
            asked.append(needs)
            with super().forward(inputs, needs) as output:
                yield output

    run(engine_of(NgramDrafter(), 4, Watched(VOCAB, 3, LOGITS), keep_prefixes=1), requests(2))
    assert set(asked) == {NOTHING}
    run(engine_of(Noting(whole(2)), 4, Watched(VOCAB, 3, LOGITS)), requests(2))
    assert asked[-1] == Needs((0, 2))


# A target that cannot take a draft back.


def test_nothing_is_drafted_for_a_target_without_rollback() -> None:
    target = model()
    target.info = type(target.info)(**{**vars(target.info), "rollback": False})
    [sequence] = run(engine_of(OracleDrafter(whole()), 8, target), requests())
    assert (sequence.output, sequence.stats.drafted) == (plain()[0], 0)
