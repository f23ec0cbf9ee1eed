"""The loop on the toy: the same text whatever is drafted, KV that follows, requests that end where they should."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from forerun.backends.toy import ToyKV, ToyModel, ToyOutput, random_logits
from forerun.controllers import Fixed
from forerun.core.draft import Draft
from forerun.core.protocols import NOTHING, Floats, ForwardInput, Needs
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.core.step import StepResult
from forerun.drafters.base import Session, SessionDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.none import NoneDrafter
from forerun.engine import Engine
from forerun.errors import PromptError
from forerun.verifiers.keyed import Keyed

VOCAB = 8


class OracleSession(Session):
    """Proposes the tokens of a known text as a chain, with a wrong sibling before each and a wrong token now and then."""

    def __init__(self, request: Request, text: Sequence[int], wrong_every: int) -> None:
        super().__init__(request)
        self._text, self._wrong = text, wrong_every
        self.seen: list[StepResult] = []

    def propose_after(self, path: Sequence[int], budget: int) -> Draft:
        start = len(self.request.tokens)
        tokens: list[int] = []
        parents: list[int] = []
        parent = -1
        for position in range(start, min(len(self._text), start + budget // 2)):
            right = self._text[position]
            tokens += [(right + 1) % VOCAB, right if position % self._wrong else (right + 2) % VOCAB]
            parents += [parent, parent]
            parent = len(tokens) - 1
        return Draft(tuple(tokens), tuple(parents), source="oracle")

    def observe(self, result: StepResult) -> None:
        self.seen.append(result)


class OracleDrafter(SessionDrafter[OracleSession]):
    name = "oracle"

    def __init__(self, texts: Mapping[str, Sequence[int]], wrong_every: int = 4) -> None:
        self._texts, self._wrong = texts, wrong_every

    def open(self, request: Request) -> OracleSession:
        return OracleSession(request, self._texts[request.id], self._wrong)


def model(order: int = 3, context: int = 4096, tree: bool = True) -> ToyModel:
    return ToyModel(VOCAB, order, random_logits(VOCAB, 11), context=context, tree=tree)


def requests(count: int = 1, **sampling: Any) -> list[Request]:
    chosen = Sampling(**{"max_tokens": 40, "temperature": 0.9} | sampling)
    return [Request([1, 2, 3 + i % 4] * (i + 1), chosen, seed=i, id=str(i)) for i in range(count)]


def run(engine: Engine, asked: list[Request]) -> list[list[int]]:
    for request in asked:
        engine.add(request)
    while not engine.idle:
        engine.step()
        for request in asked:
            if request.kv is not None and request.generated:
                assert request.kv.length == len(request.tokens) - 1
    return [request.output for request in asked]


def drain(engine: Engine) -> None:
    while not engine.idle:
        engine.step()


def plain(count: int = 1, **sampling: Any) -> list[list[int]]:
    return run(Engine(model(), NoneDrafter(), Keyed(), Fixed(0)), requests(count, **sampling))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("tree", [True, False])
@pytest.mark.parametrize(("sequences", "prefill"), [(1, 4), (3, 1), (8, 256)])
def test_same_text_whatever_is_drafted(temperature: float, tree: bool, sequences: int, prefill: int) -> None:
    expected = plain(6, temperature=temperature)
    texts = {str(i): [*r.prompt, *expected[i]] for i, r in enumerate(requests(6))}
    for drafter in (NgramDrafter(), OracleDrafter(texts)):
        engine = Engine(
            model(tree=tree),
            drafter,
            Keyed(),
            Fixed(10),
            max_sequences=sequences,
            prefill_rows=prefill,
            keep_prefixes=2,
        )
        assert run(engine, requests(6, temperature=temperature)) == expected


def test_a_good_drafter_needs_few_rounds_and_is_counted() -> None:
    [expected] = plain()
    [request] = requests()
    engine = Engine(model(), OracleDrafter({"0": [*request.prompt, *expected]}, wrong_every=1000), Keyed(), Fixed(8))
    run(engine, [request])
    # Four levels a round, each with a wrong sibling first, and the bonus: five tokens a round.
    assert request.stats.rounds == 8
    assert request.stats.accepted == 32
    assert request.stats.mean_acceptance_length == 5.0
    assert request.stats.draft_acceptance_rate == 0.5
    assert request.stats.histogram == [0, 0, 0, 0, 8]
    assert request.stats.per_position_acceptance_rate == [1.0] * 4


@pytest.mark.parametrize("penalty", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_penalties_see_the_true_prefix_inside_a_draft(penalty: str) -> None:
    options: dict[str, Any] = {penalty: 1.7, "temperature": 0.0}
    [expected] = plain(**options)
    assert expected != plain(temperature=0.0)[0]
    [request] = requests(**options)
    engine = Engine(model(), OracleDrafter({"0": [*request.prompt, *expected]}), Keyed(), Fixed(8))
    assert run(engine, [request]) == [expected]
    assert request.stats.accepted > 0


def test_stop_token_inside_an_accepted_run_ends_the_text_there() -> None:
    [expected] = plain()
    stop = expected[9]
    end = expected.index(stop)
    [request] = requests(logprobs=2)
    request.stop_ids = frozenset([stop])
    engine = Engine(model(), OracleDrafter({"0": [*request.prompt, *expected]}, 1000), Keyed(), Fixed(16))
    assert run(engine, [request]) == [expected[: end + 1]]
    assert request.finish_reason == "stop"
    assert [entry.token_id for entry in request.logprobs] == expected[: end + 1]


def test_logprobs_are_those_of_plain_decoding() -> None:
    [slow], [fast] = requests(logprobs=3), requests(logprobs=3)
    [expected] = run(Engine(model(), NoneDrafter(), Keyed(), Fixed(0)), [slow])
    run(Engine(model(), OracleDrafter({"0": [*fast.prompt, *expected]}), Keyed(), Fixed(8)), [fast])
    assert fast.stats.accepted > 0
    assert fast.logprobs == slow.logprobs
    assert all(len(entry.top) == 3 and entry.logprob <= entry.top[0][1] for entry in fast.logprobs)


def test_max_tokens_and_context_end_with_length() -> None:
    [request] = requests(max_tokens=7)
    run(Engine(model(), NgramDrafter(), Keyed(), Fixed(8)), [request])
    assert (request.generated, request.finish_reason) == (7, "length")
    [request] = requests(max_tokens=None)
    run(Engine(model(context=20), NgramDrafter(), Keyed(), Fixed(8)), [request])
    assert (len(request.tokens), request.finish_reason) == (20, "length")


def test_bad_prompts_are_refused_before_anything_runs() -> None:
    engine = Engine(model(context=5), NoneDrafter(), Keyed(), Fixed(0))
    with pytest.raises(PromptError, match="empty"):
        engine.add(Request([], Sampling()))
    with pytest.raises(PromptError, match="holds 5"):
        engine.add(Request([1] * 5, Sampling()))
    assert engine.idle


class Breaking(ToyModel):
    """Fails on purpose: NaN logits for texts that contain `poison`, or an exception at pass number `at`."""

    def __init__(
        self, poison: int | None = None, at: int | None = None, error: type[BaseException] = RuntimeError
    ) -> None:
        law = random_logits(VOCAB, 11)

        def poisoned(path: tuple[int, ...]) -> Floats:
            return np.full(VOCAB, np.nan, dtype=np.float32) if poison in path else law(path)

        super().__init__(VOCAB, 3, poisoned)
        self._passes, self._at, self._error = 0, at, error

    @contextmanager
    def forward(self, inputs: Sequence[ForwardInput], needs: Needs = NOTHING) -> Iterator[ToyOutput]:
        self._passes += 1
        with super().forward(inputs, needs) as output:
            if self._passes == self._at:
                raise self._error("on purpose")
            yield output


def test_broken_logits_end_one_request_and_not_the_others() -> None:
    poisoned, healthy = Request([7, 7, 7], Sampling()), requests()[0]
    healthy.sampling = Sampling(max_tokens=20, logit_bias={7: float("-inf")})
    run(Engine(Breaking(poison=7), NgramDrafter(), Keyed(), Fixed(3)), [poisoned, healthy])
    assert poisoned.finish_reason == "error"
    assert "finite" in str(poisoned.error)
    assert (healthy.finish_reason, healthy.generated) == ("length", 20)


@pytest.mark.parametrize("at", [1, 2, 9])
def test_an_interrupted_pass_can_be_run_again_with_the_same_text(at: int) -> None:
    expected = plain(3)
    asked = requests(3)
    engine = Engine(Breaking(at=at, error=KeyboardInterrupt), NgramDrafter(), Keyed(), Fixed(4), prefill_rows=4)
    for request in asked:
        engine.add(request)
    with pytest.raises(KeyboardInterrupt):
        drain(engine)
    drain(engine)
    assert [request.output for request in asked] == expected


def test_abort_releases_what_a_request_holds() -> None:
    asked = requests(3)
    engine = Engine(model(), NgramDrafter(), Keyed(), Fixed(4), max_sequences=2)
    for request in asked:
        engine.add(request)
    engine.step()
    kv = asked[0].kv
    assert isinstance(kv, ToyKV)
    engine.abort(asked[0])
    engine.abort(asked[2])
    assert (asked[0].finish_reason, asked[0].kv, kv.length) == ("abort", None, 0)
    drain(engine)
    assert asked[1].finish_reason == "length"
    assert asked[2].generated == 0


def test_a_text_too_short_to_be_of_use_does_not_take_a_kept_ones_place() -> None:
    engine = Engine(model(), NoneDrafter(), Keyed(), Fixed(0), keep_prefixes=1)
    first = Request([i % VOCAB for i in range(40)], Sampling(max_tokens=5))
    run(engine, [first])
    run(engine, [Request([1, 2], Sampling(max_tokens=2))])
    engine.add(Request([*first.tokens, 1, 2], Sampling(max_tokens=5)))
    [result] = engine.step()
    assert len(result.input_tokens) == 3


def test_a_kept_prefix_is_read_once() -> None:
    prompt = [i % VOCAB for i in range(40)]
    first = Request(prompt, Sampling(max_tokens=5))
    engine = Engine(model(), NoneDrafter(), Keyed(), Fixed(0), keep_prefixes=1)
    run(engine, [first])
    second = Request([*first.tokens, 1, 2], Sampling(max_tokens=5))
    engine.add(second)
    [result] = engine.step()
    assert (
        len(result.input_tokens) == 3
    )  # the last token of the first text, which no pass had read, and the two new ones
    drain(engine)
    fresh = Request([*first.tokens, 1, 2], Sampling(max_tokens=5))
    run(Engine(model(), NoneDrafter(), Keyed(), Fixed(0)), [fresh])
    assert second.output == fresh.output
