"""`forerun bench serve`: a server of its own, a running one, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from forerun.bench.hosting import hosted
from forerun.bench.streams import ask
from forerun.errors import BackendError
from tests.conftest import Cli
from tests.serving import serving, toy

pytest.importorskip("fastapi")
TOY = ("--model", "toy", "--backend", "toy")
SHORT = ("--repeats", "1", "--requests", "1", "--max-tokens", "6")


def test_modes_beside_one_another_as_json(cli: Cli, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    ran = cli("bench", "serve", *TOY, *SHORT, "--streams", "1,2", "--temperature", "0.8", "--log", str(log), "--json")
    assert ran.status == 0, ran.err
    told = ran.json
    assert (told["loop"], told["same_text"], told["slo_s"]) == ("open", True, {"ttft": 0.5, "tpot": 0.1})
    assert set(told["definitions"]) == {"ttft", "tpot", "itl", "e2el"}
    rows = {(row["streams"], row["mode"]): row for row in told["rows"]}
    assert list(rows) == [(streams, mode) for streams in (1, 2) for mode in ("off", "on", "auto")]
    for (_, mode), row in rows.items():
        assert (row["requests"], row["failed"], row["different"]) == (8, 0, 0)
        assert row["compared"] == 8
        assert row["request_rate"] > 0
        assert row["output_tokens_per_second"] > 0
        assert set(row["latency_s"]) == set(told["definitions"])
        assert all(set(found) == {"p50", "p90", "p99"} for found in row["latency_s"].values())
        assert mode != "off" or row["times_off"]["median"] == 1.0
    lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    assert len(lines) == 2 * 3 * 8
    assert all(line["failure"] is None and 1 <= line["tokens"] <= 6 for line in lines)


def test_a_table_says_what_its_words_mean(cli: Cli, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "the drafter"}\n{"turns": ["what the", "more"]}\n', "utf-8")
    ran = cli("bench", "serve", str(prompts), *TOY, *SHORT, "--streams", "2", "--closed", "--modes", "auto")
    assert ran.status == 0, ran.err
    rows = [line.split() for line in ran.out.splitlines()[1:3]]
    assert [row[:5] for row in rows] == [["2", "off", "8", "0", "yes"], ["2", "auto", "8", "0", "yes"]]
    for words in (
        "text: the same token ids in auto as in off, of 8 pairs of answers.",
        "closed loop:",
        "TTFT: time to first token: from sending the request to its first chunk.",
        "good: requests within ttft:500ms,tpot:100ms",
    ):
        assert words in ran.out


@pytest.mark.models
def test_a_real_model(cli: Cli) -> None:
    options = ("--model", "smollm2-135m", "--streams", "4", "--repeats", "1", "--requests", "2", "--max-tokens", "12")
    ran = cli("bench", "serve", *options, "--draft", "ngram", "--json")
    assert ran.status == 0, ran.err
    assert ran.json["same_text"] is True
    assert [(row["mode"], row["requests"], row["failed"]) for row in ran.json["rows"]] == [
        *(("off", 8, 0), ("on", 8, 0), ("auto", 8, 0))
    ]


def test_a_server_that_runs_already(cli: Cli) -> None:
    with toy() as llm, serving(llm) as client:
        url = str(client.base_url).rstrip("/")
        ran = cli("bench", "serve", *SHORT, "--url", url, "--streams", "2", "--modes", "on", "--json")
    assert ran.status == 0, ran.err
    assert "share the server's memory" in ran.err
    assert [row["mode"] for row in ran.json["rows"]] == ["off", "on"]


def test_another_text_fails_the_benchmark(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    async def other(address: Any, key: Any, body: dict[str, Any], due: float) -> Any:
        drafted = body["speculation"].get("enabled") is not False
        return await ask(address, key, body | ({"seed": 77} if drafted else {}), due)

    monkeypatch.setattr("forerun.bench.serving.ask", other)
    with toy() as llm, serving(llm) as client:
        url = str(client.base_url).rstrip("/")
        options = ("--url", url, "--streams", "2", "--modes", "auto", "--temperature", "1.5")
        ran = cli("bench", "serve", *SHORT, *options)
    assert ran.status == 1
    assert "auto wrote another text than off for" in ran.err
    assert "DIFFER from off" in ran.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--streams", "0"), "--streams is '0'"),
        (("--slo", "ttft:5"), "--slo has"),
        (("--repeats", "0"), "--repeats is 0"),
        (("--requests", "0"), "--requests is 0"),
        (("--max-tokens", "0"), "--max-tokens is 0"),
        (("--modes", "of"), "unknown mode 'of'"),
        (("--peer", "vllm"), "unknown peer 'vllm'"),
        (("--url", "https://box"), "--url 'https://box'"),
        (("no-such-file",), "cannot read no-such-file"),
    ],
)
def test_what_is_refused(cli: Cli, options: tuple[str, ...], words: str) -> None:
    ran = cli("bench", "serve", *TOY, *options)
    assert (ran.status, ran.out) == (2, "")
    assert words in ran.err


def test_a_peer_that_is_not_installed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    ran = cli("bench", "serve", *TOY, "--peer", "llama-cpp")
    assert (ran.status, ran.out) == (2, "")
    assert "llama-cpp-python, which is not installed" in ran.err


def test_a_server_that_does_not_start_says_why() -> None:
    with (
        pytest.raises(BackendError, match=r"did not start: .*no-such-model"),
        hosted(["--model", "no-such-model"], ["k"]),
    ):
        pass
