"""Many requests through one LLM at the same time: each has its own text, its own way of drafting, and its own end."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import forerun
from forerun import Speculation
from forerun.core.step import StepResult
from forerun.errors import UsageError

DRAFTS = ("ngram", "suffix+recycling", "model:toy")
PROMPTS = ["the drafter runs", "what the target", "in one pass, so the", "until the text"]
# Longest that anything here is waited for; nothing takes a hundredth of it.
HANGS = 60


def load(**options: Any) -> forerun.LLM:
    return forerun.LLM.load("toy", **{"draft": DRAFTS[0], "other_drafts": DRAFTS[1:], **options})


Ask = tuple[str, dict[str, Any]]


def mixed(count: int) -> list[Ask]:
    """Requests of every draft, rule and budget there is, and plain ones between them."""
    rules = ("keyed", "rejection", "block", "traversal", "kseq")
    asks: list[Ask] = []
    for index in range(count):
        speculation = Speculation(
            enabled=index % 7 != 6,
            draft=DRAFTS[index % len(DRAFTS)],
            verifier=rules[index % len(rules)],
            num_speculative_tokens=1 + index % 6,
        )
        temperature = (0.0, 0.9)[index % 2]
        # Its scores follow all texts, so under a rule that draws by the draft a seed promises no text.
        if speculation.draft == "suffix+recycling" and speculation.verifier != "keyed":
            temperature = 0.0
        options = {"max_tokens": 30 + index, "temperature": temperature, "seed": index, "trace": True}
        asks.append((PROMPTS[index % 4], {**options, "speculation": speculation}))
    return asks


def alone(asks: list[Ask]) -> list[list[int]]:
    """The text of each: without speculation where a rule may not change it, alone with its draft where a rule draws."""
    texts = []
    with load(draft="none", other_drafts=None) as plain:
        for prompt, options in asks:
            speculation = options["speculation"]
            if speculation.verifier == "keyed" or options["temperature"] == 0.0 or not speculation.enabled:
                wanted = {**options, "speculation": None}
                # Plain decoding under a rule that is not keyed draws with the rule's own noise.
                if not speculation.enabled:
                    wanted["speculation"] = Speculation(verifier=speculation.verifier)
                texts.append(plain.generate(prompt, **wanted).token_ids)
            else:
                with load() as one:
                    texts.append(one.generate(prompt, **options).token_ids)
    return texts


def check(asks: list[Ask], answers: list[forerun.Completion]) -> None:
    assert [answer.token_ids for answer in answers] == alone(asks)
    for (_, options), answer in zip(asks, answers, strict=True):
        speculation = options["speculation"]
        assert answer.verifier == speculation.verifier
        assert answer.draft == (speculation.draft if speculation.enabled else "none")
        assert answer.steps is not None
        drafted = max(len(step["drafted"]) for step in answer.steps)
        assert drafted <= (speculation.num_speculative_tokens if speculation.enabled else 0)
        assert (drafted > 0) == speculation.enabled


def test_tasks_with_drafts_rules_and_budgets_of_their_own() -> None:
    asks = mixed(30)

    async def together(llm: forerun.LLM) -> list[forerun.Completion]:
        return await asyncio.gather(*(llm.generate_async(prompt, **options) for prompt, options in asks))

    with load(max_sequences=8) as llm:
        check(asks, asyncio.run(together(llm)))
        assert llm.assembly.engine.idle


def test_threads_with_drafts_rules_and_budgets_of_their_own() -> None:
    asks = mixed(30)
    with load(max_sequences=8) as llm, ThreadPoolExecutor(10) as threads:
        check(asks, list(threads.map(lambda ask: llm.generate(ask[0], **ask[1]), asks)))
        assert llm.assembly.engine.idle


def test_threads_streams_batches_and_tasks_at_once() -> None:
    kinds: list[dict[str, Any]] = [{}, {"temperature": 0.8, "seed": 4}, {"stop": [" and"], "repetition_penalty": 1.1}]
    with load(draft="none", other_drafts=None) as plain:
        expected = [[plain.generate(prompt, max_tokens=40, **kind).text for prompt in PROMPTS] for kind in kinds]

    def streams(llm: forerun.LLM, kind: dict[str, Any]) -> list[str]:
        opened = [llm.stream(prompt, max_tokens=40, **kind) for prompt in PROMPTS]
        return ["".join(chunk.text for chunk in stream) for stream in opened]

    def batch(llm: forerun.LLM, kind: dict[str, Any]) -> list[str]:
        return [answer.text for answer in llm.generate_all(PROMPTS, max_tokens=40, **kind)]

    def tasks(llm: forerun.LLM, kind: dict[str, Any]) -> list[str]:
        async def one(prompt: str) -> str:
            return "".join([chunk.text async for chunk in llm.stream_async(prompt, max_tokens=40, **kind)])

        async def together() -> list[str]:
            return await asyncio.gather(*map(one, PROMPTS))

        return asyncio.run(together())

    ways: list[Callable[[forerun.LLM, dict[str, Any]], list[str]]] = [streams, batch, tasks]
    with load(max_sequences=5) as llm, ThreadPoolExecutor(9) as threads:
        running = [(index, threads.submit(way, llm, kind)) for way in ways for index, kind in enumerate(kinds)]
        for index, way in running:
            assert way.result(HANGS) == expected[index]
        assert llm.assembly.engine.idle


@pytest.mark.parametrize(
    ("speculation", "says"),
    [
        (Speculation(draft="ngrm"), "unknown draft 'ngrm'.*Did you mean ngram"),
        (Speculation(verifier="typical"), "unknown verifier 'typical'"),
        ("fast", "speculation is 'fast'; it must be true, false or a Speculation"),
    ],
    ids=str,
)
def test_what_was_not_built_is_refused(speculation: Any, says: str) -> None:
    with load() as llm, pytest.raises(UsageError, match=says):
        llm.generate("the drafter", speculation=speculation)


class Held:
    """Holds the engine's thread in the n-th step from now until `go`. seen: which prompts were live in each step."""

    def __init__(self, llm: forerun.LLM, nth: int, patch: pytest.MonkeyPatch) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        self.seen: list[list[int]] = []
        engine = llm.assembly.engine
        step = engine.step

        def held() -> list[StepResult]:
            if len(self.seen) == nth - 1:
                self.reached.set()
                assert self.go.wait(HANGS)
            results = step()
            self.seen.append([len(result.sequence.request.prompt) for result in results])
            return results

        patch.setattr(engine, "step", held)


# A request is known by the length of its prompt.
LONG, SHORT = "the drafter", "what"
ENDLESS: dict[str, Any] = {"max_tokens": 3000, "ignore_eos": True}


def left_alone(llm: forerun.LLM, held: Held, short: forerun.Completion) -> None:
    """The long one had its place up to the step in which it was ended, and the short one from the next step on."""
    with load(draft="none", other_drafts=None) as plain:
        assert short.token_ids == plain.generate(SHORT, max_tokens=9).token_ids
    assert held.seen[:5] == [[len(LONG)]] * 5
    assert {one for step in held.seen[5:] for one in step} == {len(SHORT)}
    assert llm.assembly.engine.idle
    assert not llm.assembly.engine.scheduler.live


def test_a_cancelled_task_frees_its_place_within_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    async def two(llm: forerun.LLM, held: Held) -> forerun.Completion:
        long = asyncio.create_task(llm.generate_async(LONG, **ENDLESS))
        await asyncio.sleep(0)
        short = asyncio.create_task(llm.generate_async(SHORT, max_tokens=9))
        assert await asyncio.to_thread(held.reached.wait, HANGS)
        long.cancel()
        with pytest.raises(asyncio.CancelledError):
            await long
        held.go.set()
        return await short

    with load(max_sequences=1) as llm:
        held = Held(llm, 5, monkeypatch)
        left_alone(llm, held, asyncio.run(two(llm, held)))


@pytest.mark.parametrize("how", ["closed", "forgotten"])
@pytest.mark.parametrize("kind", ["stream", "stream_async"])
def test_a_stream_that_is_left_frees_its_place_within_a_step(
    kind: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def two(llm: forerun.LLM, held: Held) -> forerun.Completion:
        long: Any = [getattr(llm, kind)(LONG, **ENDLESS)]
        short = asyncio.create_task(llm.generate_async(SHORT, max_tokens=9))
        assert await asyncio.to_thread(held.reached.wait, HANGS)
        if how == "closed":
            # That of a thread returns when the place is free, so it is asked in one of its own.
            closing = threading.Thread(target=long[0].close)
            closing.start()
            while not llm.worker._loop._commands:
                await asyncio.sleep(0.001)
            held.go.set()
            await asyncio.to_thread(closing.join, HANGS)
            assert long[0].completion.finish_reason == "abort"
        else:
            long.clear()
            gc.collect()
            held.go.set()
        return await short

    with load(max_sequences=1) as llm:
        held = Held(llm, 5, monkeypatch)
        left_alone(llm, held, asyncio.run(two(llm, held)))


@pytest.mark.models
def test_sixteen_long_requests_in_memory_for_four(caplog: pytest.LogCaptureFixture) -> None:
    """On a real model: who has no room waits, or reads its text again, and nobody's text changes."""
    numbers = "and about the numbers that come after it, "
    prompts = [f"Write down what you know about {index}, " + numbers * (8 + index % 3) for index in range(16)]
    options: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True, "temperature": 0.7, "seed": 9}
    with forerun.LLM.load("smollm2-135m", draft="none", keep_prefixes=0) as plain:
        expected = [answer.token_ids for answer in plain.generate_all(prompts, concurrency=1, **options)]
        longest = max(map(len, map(plain.encode, prompts))) + 24
        room = plain.assembly.engine.target.room()
    per_token = 30 * 3 * 64 * 2 * 2  # bytes of SmolLM2's keys and values, in fp16
    memory = 4 * room.pages(longest) * room.page * per_token
    for draft in ("suffix+recycling", "self:exit=12"):
        with forerun.LLM.load(
            "smollm2-135m", draft=draft, kv_memory=memory, max_sequences=16, num_speculative_tokens=4
        ) as llm:
            target = llm.assembly.engine.target
            assert 3 * room.pages(longest) <= target.room().total <= 4 * room.pages(longest)
            answers = list(llm.generate_all(prompts, **options))
            assert [answer.token_ids for answer in answers] == expected
            assert {answer.finish_reason for answer in answers} == {"length"}
            # Where there is no page for its drafts, a model says nothing; drafts that need no memory are still verified.
            assert draft.startswith("self:") or sum(answer.stats.accepted for answer in answers) > 0
            assert "a step failed" not in caplog.text
            llm.worker.call(llm.assembly.engine.prefixes.clear)
            assert target.room().free == target.room().total
