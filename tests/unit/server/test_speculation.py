"""Speculation under the client's control, and what a response says about it."""

from __future__ import annotations

from typing import Any

import pytest

from forerun.controllers import CostCurve, Goodput
from forerun.llm import LLM
from tests.serving import Client, serving, toy


def test_what_was_in_force_comes_back(client: Client) -> None:
    told = client.chat(max_tokens=20, temperature=0)["speculation"]
    assert told == {
        "enabled": True,
        "draft": "prediction+suffix+recycling",
        "verifier": "keyed",
        "controller": "fixed",
        "num_speculative_tokens": None,
        "lossy": None,
        "reason": None,
    }
    chosen = {"draft": "ngram", "verifier": "block", "num_speculative_tokens": 2}
    told = client.chat(max_tokens=20, temperature=0, speculation=chosen)["speculation"]
    assert {name: told[name] for name in chosen} == chosen


@pytest.mark.parametrize(
    ("speculation", "reason"),
    [
        ({"enabled": False}, "switched it off"),
        ({"draft": "none"}, "switched it off"),
        ({"num_speculative_tokens": 0}, "allows no drafted tokens"),
    ],
)
def test_why_nothing_was_drafted(client: Client, speculation: dict[str, Any], reason: str) -> None:
    told = client.chat(max_tokens=20, speculation=speculation)
    assert reason in told["speculation"]["reason"]
    assert told["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0


def test_why_nothing_was_drafted_here() -> None:
    with toy(draft="none") as llm, serving(llm) as client:
        assert "without a draft" in client.chat(max_tokens=5)["speculation"]["reason"]
        assert any("nothing is drafted" in line for line in client.get("/health").json()["limitations"])
        assert client.refused(speculation={"draft": "suffix"})[0] == 400
    with toy(draft="ngram") as llm, serving(llm) as client:
        assert "no second token" in client.chat(max_tokens=1)["speculation"]["reason"]
        told = client.complete("q", max_tokens=3, logit_bias={"97": 1000, "98": 999, "99": 998}, frequency_penalty=100)
        assert "nothing to propose" in told["speculation"]["reason"]
        status, error = client.refused(prediction={"type": "content", "content": "x"})
        assert status == 400
        assert "prediction" in error["message"]


def test_what_the_server_was_not_started_with_is_refused(client: Client) -> None:
    for name, value in (("draft", "model:gpt-4"), ("verifier", "typical")):
        status, error = client.refused(speculation={name: value})
        assert status == 400
        assert value in error["message"]


def test_a_drafter_that_fails_ends_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with toy(draft="ngram") as llm, serving(llm) as client:
        plain = client.chat(max_tokens=40, temperature=0)
        guarded = next(iter(llm.assembly.engine.speculator._guarded.values()))

        def broken(requests: Any) -> Any:
            raise RuntimeError("the drafter has lost its mind")

        monkeypatch.setattr(guarded.drafter, "propose", broken)
        again = client.chat(max_tokens=40, temperature=0)
        assert again["choices"] == plain["choices"]
        assert "ngram failed" in again["speculation"]["reason"]
        assert any("lost its mind" in line for line in client.get("/health").json()["limitations"])


def test_a_trace_tells_each_step(client: Client) -> None:
    asked: dict[str, Any] = {
        "max_tokens": 30,
        "temperature": 0,
        "return_token_ids": True,
        "speculation": {"trace": True},
    }
    whole = client.chat(**asked)
    steps = whole["speculation"]["steps"]
    written = [token for step in steps for token in step["tokens"]]
    assert written == whole["choices"][0]["token_ids"]
    assert "".join(text for step in steps for text in step["text"]) == whole["choices"][0]["message"]["content"]
    drafted = [step for step in steps if step["drafted"]]
    assert drafted
    for step in drafted:
        assert len(step["drafted"]) == len(step["parents"]) == len(step["sources"]) == len(step["drafted_text"])
        assert [step["drafted"][node] for node in step["accepted_path"]] == step["tokens"][: len(step["accepted_path"])]
        assert set(step["sources"]) <= {"prediction", "suffix", "recycling"}
    message = [{"role": "user", "content": "the drafter"}]
    chunks = client.chunks("/v1/chat/completions", messages=message, **asked)
    streamed = [chunk["step"] for chunk in chunks if "step" in chunk]
    # Drafters have learned, so the steps differ; what was written does not.
    assert [token for step in streamed for token in step["tokens"]] == written


def test_health_says_what_runs(client: Client, llm: LLM) -> None:
    told = client.get("/health").json()
    assert told["status"] == "ok"
    assert told["backend"] == told["model"] == "toy"
    assert told["speculation"]["drafts"] == ["prediction+suffix+recycling", "ngram"]
    assert told["speculation"]["verifiers"][0] == "keyed"
    assert told["batch_invariant"] is True
    assert told["requests"]["max_batch"] == llm.assembly.max_sequences


def test_a_plain_answer_helps_no_draft() -> None:
    """Who compares the two, the plain one first, sees what speculation does by itself."""
    body: dict[str, Any] = {"prompt": "the drafter runs ahead", "max_tokens": 60, "seed": 3}

    def drafted(client: Client, **speculation: Any) -> tuple[int, int]:
        timings = client.complete(**body, speculation=speculation)["timings"]
        return timings["draft_n"], timings["draft_n_accepted"]

    with toy() as llm, serving(llm) as client:
        alone = drafted(client)
        # What was written with drafts is drafted from again.
        assert drafted(client)[1] > alone[1] > 0
    with toy() as llm, serving(llm) as client:
        assert drafted(client, enabled=False) == (0, 0)
        assert drafted(client) == alone


def test_health_tells_what_a_pass_costs(client: Client) -> None:
    assert client.get("/health").json()["pass_ms"] is None  # `fixed` does not look at the clock
    controller = Goodput(CostCurve({1: 0.010, 4: 0.016}))
    with toy(controller=controller) as llm, serving(llm) as measured:
        told = {point["rows"]: point["ms"] for point in measured.get("/health").json()["pass_ms"]}
        assert (told[1], told[2], told[4], told[8]) == (10.0, 12.0, 16.0, 24.0)
        controller.curve.observe(1, 0.020)
        assert measured.get("/health").json()["pass_ms"][0] == {"rows": 1, "ms": round(controller.curve(1) * 1e3, 3)}
        assert controller.curve(1) > 0.010


def test_health_knows_a_step_that_does_not_end(llm: LLM) -> None:
    with serving(llm, stall_timeout=1.0) as client:
        loop = llm.worker._loop
        loop.began = -1e9
        try:
            answer = client.get("/health")
            assert (answer.status_code, answer.json()["status"]) == (503, "stalled")
        finally:
            loop.began = None
        assert client.get("/health").status_code == 200


def test_metrics_count_what_happened() -> None:
    with toy(keep_prefixes=4) as llm, serving(llm) as client:
        told = [client.chat(max_tokens=25, temperature=0, n=2) for _ in range(2)]
        text = client.get("/metrics").text
    counted = {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if not line.startswith("#")}
    blocks = [one["metrics"]["speculative_decoding"] for one in told]
    for prefix in ("forerun_", "vllm:"):
        assert counted[f"{prefix}spec_decode_num_drafts_total"] == sum(one["num_spec_steps"] for one in blocks)
        assert counted[f"{prefix}spec_decode_num_draft_tokens_total"] == sum(one["num_draft_tokens"] for one in blocks)
        accepted = sum(one["num_accepted_draft_tokens"] for one in blocks)
        assert counted[f"{prefix}spec_decode_num_accepted_tokens_total"] == accepted
        positions = [
            name for name in counted if name.startswith(f"{prefix}spec_decode_num_accepted_tokens_per_pos_total")
        ]
        assert sum(counted[name] for name in positions) == accepted
    written = sum(one["usage"]["completion_tokens"] for one in told)
    assert counted["forerun_generation_tokens_total"] == written
    assert counted["forerun_time_to_first_token_seconds_count"] == 4
    assert counted["forerun_e2e_request_latency_seconds_count"] == 4
    assert counted["forerun_time_per_output_token_seconds_count"] == 4
    assert counted["forerun_inter_token_latency_seconds_count"] <= written
    assert counted["forerun_prefix_cache_hits_total"] > 0
    assert counted['forerun_request_finished_total{reason="length"}'] == 4
    assert counted["forerun_num_requests_running"] == counted["forerun_num_requests_waiting"] == 0
    assert not any("_created" in name and "spec_decode" in name for name in counted)
