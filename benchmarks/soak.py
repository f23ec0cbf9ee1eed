"""A server under eight streams of random requests for many minutes: every one gets its answer, and memory stays flat.

    python benchmarks/soak.py --minutes 30 --log soak.jsonl

Prompts, parameters, grammars, API keys and speculation are drawn anew for each request; some clients hang up, some ask for
what is refused. One request in ten is always the same and must get the same text. The server's own resident memory (RssAnon:
without mapped files, of which more is touched as time goes on) is read every second; it is flat where the medians of the first
and last third after the warm-up are within --allowed of one another. Options that are unknown here are the server's. Needs
httpx, and Linux.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from forerun.bench.hosting import hosted
from forerun.bench.serving import BUILT_IN

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PROMPTS = [json.loads(line)["prompt"] for line in BUILT_IN.read_text("utf-8").splitlines()]
WORDS = sorted({word for prompt in PROMPTS for word in prompt.split()})
# Each is in a request now and then.
SOMETIMES: dict[str, Sequence[Any]] = {
    "top_p": (0.3, 0.9),
    "top_k": (1, 40),
    "min_p": (0.05, 0.2),
    "presence_penalty": (0.5, -0.5),
    "frequency_penalty": (0.5, 1.0),
    "repetition_penalty": (1.1, 1.3),
    "logit_bias": ({"5": -100}, {"300": 5, "301": -5}),
    "stop": ("\n\n", [".", "!"]),
    "ignore_eos": (True,),
    "return_token_ids": (True,),
    "speculation": ({"enabled": False}, {"num_speculative_tokens": 6}, {"trace": True}),
}
GUIDES: Sequence[dict[str, Any]] = (
    {"response_format": {"type": "json_object"}},
    {"guided_choice": ["yes", "no", "it depends"]},
    {"guided_regex": "[a-z ]{5,40}"},
)
REFUSED: Sequence[dict[str, Any]] = ({"temperature": "hot"}, {"no_such_field": 1}, {"top_p": 7}, {"model": "none"})
ALWAYS = {"messages": [{"role": "user", "content": PROMPTS[0]}], "max_tokens": 24, "temperature": 0.8, "seed": 7}
# The second request of each stream, so that even a slow machine sees all kinds: the usual one, refused, hung up, answered.
KINDS = (0.05, 0.12, 0.2, 0.5)
# Seconds that an answer may take.
PATIENCE = 300.0


@dataclass
class Report:
    """What came of a soak. counts: requests, by what came of them. wrong: what should not have happened.

    resident: (second, KiB of the server's own, KiB with the files that it maps).
    """

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    resident: list[tuple[float, int, int]] = field(default_factory=list)

    def thirds(self, warm_up: float) -> tuple[float, float]:
        """Its own resident MiB in the first and in the last third of the time after the warm-up: medians."""
        sizes = [own / 1024 for second, own, _ in self.resident if second >= warm_up]
        part = max(1, len(sizes) // 3)
        return statistics.median(sizes[:part]), statistics.median(sizes[-part:])


def drawn(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A request that is answered with 200: where to, and its body."""
    text = rng.choice(PROMPTS) if rng.random() < 0.5 else " ".join(rng.choices(WORDS, k=rng.randint(1, 300)))
    body: dict[str, Any] = {
        "max_tokens": rng.randint(1, 64),
        "seed": rng.randrange(2**31),
        "n": rng.choice((1, 1, 1, 2)),
    }
    body |= {"temperature": rng.choice((0, 0.7, 1.2)), "stream": rng.random() < 0.7}
    body |= {name: rng.choice(values) for name, values in SOMETIMES.items() if rng.random() < 0.15}
    if rng.random() < 0.15:
        body |= rng.choice(GUIDES)
    if rng.random() < 0.3:
        return TEXT, body | {"prompt": text} | ({"logprobs": 3} if rng.random() < 0.3 else {})
    return CHAT, body | {"messages": [{"role": "user", "content": text}]}


def largest(index: int) -> tuple[str, dict[str, Any]]:
    """A long text for each of several streams to begin with, so that what grows with the largest request is grown at once."""
    messages = [{"role": "user", "content": " ".join(WORDS[at % len(WORDS)] for at in range(index, index + 300))}]
    body = {"messages": messages, "max_tokens": 64, "n": 2, "stream": True, "logprobs": True, "top_logprobs": 20}
    return CHAT, body | GUIDES[index % len(GUIDES)]


class Soak:
    """One run against the server behind `client`, whose API keys are `keys`."""

    def __init__(self, client: httpx.AsyncClient, keys: Sequence[str], report: Report) -> None:
        self._client, self._keys, self._report = client, keys, report
        self._usual: str | None = None

    async def stream(self, index: int, seed: int, until: float) -> None:
        """Ask one request after the other."""
        rng = random.Random(f"{seed} {index}")
        asked = 0
        while time.monotonic() < until:
            try:
                async with asyncio.timeout(PATIENCE):
                    kind = KINDS[index % len(KINDS)] if asked == 1 else rng.random()
                    what = self._one(rng, kind) if asked else self._answer(*largest(index), self._headers(rng))
                    self._report.counts[await what] += 1
            except (httpx.HTTPError, TimeoutError, ValueError, KeyError, AssertionError) as error:
                self._report.counts["wrong"] += 1
                self._report.wrong.append(f"{type(error).__name__}: {error}")
            asked += 1

    def _headers(self, rng: random.Random) -> dict[str, str]:
        return {"Authorization": f"Bearer {rng.choice(self._keys)}"}

    async def _one(self, rng: random.Random, kind: float) -> str:
        """What came of one request. Raises AssertionError for what should not have."""
        headers = self._headers(rng)
        if kind < 0.1:
            answer = await self._client.post(CHAT, json=ALWAYS, headers=headers)
            told = json.dumps(answer.json().get("choices"))
            self._usual = self._usual or told
            assert answer.status_code == 200 and told == self._usual, f"another text than usual: {told}"  # noqa: PT018
            return "the same again"
        path, body = drawn(rng)
        if kind < 0.15:
            answer = await self._client.post(path, json=body | rng.choice(REFUSED), headers=headers)
            assert answer.status_code in (400, 404, 422), f"status {answer.status_code} for what is to be refused"
            return "refused"
        if kind < 0.4:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rng.random()):
                    return await self._answer(path, body, headers)
            return "hung up"
        return await self._answer(path, body, headers)

    async def _answer(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> str:
        """The answer, which must be whole."""
        async with self._client.stream("POST", path, json=body, headers=headers) as answer:
            lines = [line async for line in answer.aiter_lines() if line.startswith("data: ") or not body["stream"]]
        assert answer.status_code == 200, f"status {answer.status_code}: {' '.join(lines)[:200]}"
        if body["stream"]:
            assert lines.pop() == "data: [DONE]", "a stream that broke off"
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
        ended = sum(choice["finish_reason"] in ("stop", "length") for chunk in chunks for choice in chunk["choices"])
        assert ended == body["n"], f"{ended} of {body['n']} choices ended as they should"
        return "answered"


async def _watch(pid: int, report: Report) -> None:
    """Read the memory of a process every second."""
    began = time.monotonic()
    while True:
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text("utf-8").splitlines())
        sizes = {name: int(fields[name].split()[0]) for name in ("RssAnon", "VmRSS")}
        report.resident.append((time.monotonic() - began, sizes["RssAnon"], sizes["VmRSS"]))
        await asyncio.sleep(1.0)


async def _run(url: str, pid: int, keys: Sequence[str], streams: int, seconds: float, seed: int) -> Report:
    report = Report()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, limits=limits) as client:
        soak = Soak(client, keys, report)
        watching = asyncio.create_task(_watch(pid, report))
        until = time.monotonic() + seconds
        await asyncio.gather(*(soak.stream(index, seed, until) for index in range(streams)))
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        await asyncio.sleep(1.0)
        health = (await client.get("/health", headers={"Authorization": f"Bearer {keys[0]}"})).json()
    left = health["requests"]["running"] + health["requests"]["waiting"]
    if health["status"] != "ok" or left or any("failed" in words for words in health["limitations"]):
        report.wrong.append(f"health afterwards: {health}")
    return report


def soak(model: str, *, minutes: float, streams: int = 8, seed: int = 0, options: Sequence[str] = ()) -> Report:
    """Start a server, and keep so many streams busy. options: further ones of the server, which win over those here."""
    keys = ["soak-one", "soak-two"]
    # Little memory for keys and values is soon full, and then sequences have to wait for one another.
    arguments = [
        "--model",
        model,
        "--max-batch",
        str(streams),
        "--remember",
        "nothing",
        "--kv-memory",
        "128MiB",
        *options,
    ]
    with hosted(arguments, keys) as server:
        url = f"http://{server.address.host}:{server.address.port}"
        return asyncio.run(_run(url, server.pid, keys, streams, minutes * 60, seed))


def main(show: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(description="Hold a server under load and watch its memory.")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warm-up", type=float, help="minutes that do not count; a third of all unless said")
    parser.add_argument("--allowed", type=float, default=16.0, help="MiB that memory may grow by")
    parser.add_argument("--log", type=Path, help="write seconds and resident bytes here, a JSON line each")
    asked, options = parser.parse_known_args()
    report = soak(asked.model, minutes=asked.minutes, streams=asked.streams, seed=asked.seed, options=options)
    if asked.log is not None:
        lines = (
            json.dumps({"second": round(at, 1), "own_kib": own, "all_kib": all_}) for at, own, all_ in report.resident
        )
        asked.log.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    first, last = report.thirds(60 * (asked.minutes / 3 if asked.warm_up is None else asked.warm_up))
    show(f"{asked.minutes:g} minutes, {asked.streams} streams: {sum(report.counts.values())} requests")
    show(", ".join(f"{count} {kind}" for kind, count in report.counts.most_common()))
    show(f"its own resident memory after the warm-up: {first:.1f} MiB, at the end {last:.1f} MiB ({last - first:+.1f})")
    show(f"with mapped files at the end: {report.resident[-1][2] / 1024:.1f} MiB")
    for words in report.wrong[:20]:
        show(f"WRONG: {words}")
    return int(bool(report.wrong) or last - first > asked.allowed)


if __name__ == "__main__":
    sys.exit(main())
