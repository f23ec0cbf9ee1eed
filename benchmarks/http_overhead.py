"""What HTTP costs: one stream through the server against `LLM.stream`, on the same loaded model in the same process.

    python benchmarks/http_overhead.py --model qwen2.5-coder-1.5b --limit 12 --tokens 96

Every prompt is answered in both ways, plainly and with prompt lookup, which way first alternates; the token ids must be the
same. Neither prefixes nor texts are remembered. Seconds are from asking to the last token, and the ratio is of their sums.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forerun.bench.serving import BUILT_IN
from forerun.bench.streams import Address, ask
from forerun.cli.prompts import first_turns
from forerun.llm import LLM
from forerun.server import Settings
from forerun.server.run import Server, listening

# Seconds, and the tokens written in them.
Timed = tuple[float, list[int]]
Ask = Callable[[str, bool], Timed]


@contextmanager
def served(llm: LLM) -> Iterator[Address]:
    """A server over a model, on a thread of this process."""
    settings = Settings(port=0)
    server = Server(llm, settings)
    with listening(settings) as socket:
        thread = threading.Thread(target=server.run, args=([socket],))
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield Address("127.0.0.1", socket.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()


def over_http(address: Address, tokens: int) -> Ask:
    def once(prompt: str, drafted: bool) -> Timed:
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "temperature": 0,
        }
        body |= {"stream": True, "return_token_ids": True, "ignore_eos": True, "speculation": {"enabled": drafted}}
        answer = asyncio.run(ask(address, None, body, 0.0))
        assert answer.failure is None, answer.failure
        return answer.e2el, list(answer.token_ids)

    return once


def in_process(llm: LLM, tokens: int) -> Ask:
    def once(prompt: str, drafted: bool) -> Timed:
        began, written = time.perf_counter(), list[int]()
        options: dict[str, Any] = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        if not drafted:
            options["speculation"] = False
        for chunk in llm.stream([{"role": "user", "content": prompt}], **options):
            written += chunk.token_ids
        return time.perf_counter() - began, written

    return once


def main() -> int:
    parser = argparse.ArgumentParser(description="One stream over HTTP against LLM.stream.")
    parser.add_argument("prompts", nargs="?", type=Path, default=BUILT_IN)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--limit", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=96)
    asked = parser.parse_args()
    prompts = [text for text, _ in first_turns(asked.prompts)][: asked.limit]
    with (
        LLM.load(asked.model, draft="ngram", keep_prefixes=0, remember="nothing") as llm,
        served(llm) as address,
    ):
        ways = {"LLM.stream": in_process(llm, asked.tokens), "HTTP": over_http(address, asked.tokens)}
        for once in ways.values():
            once(prompts[0], True)
        for drafted in (False, True):
            seconds: dict[str, list[float]] = {name: [] for name in ways}
            for index, prompt in enumerate(prompts):
                texts = []
                for name in sorted(ways, reverse=bool(index % 2)):
                    taken, text = ways[name](prompt, drafted)
                    seconds[name].append(taken)
                    texts.append(text)
                assert texts[0] == texts[1], f"prompt {index}: another text over HTTP"
            pairs = [near / far for near, far in zip(seconds["LLM.stream"], seconds["HTTP"], strict=True)]
            rates = {name: len(prompts) * asked.tokens / sum(taken) for name, taken in seconds.items()}
            print(
                f"{'prompt lookup' if drafted else 'plain'}: "
                + ", ".join(f"{name} {rate:.1f} tok/s" for name, rate in rates.items())
                + f"; HTTP / LLM.stream {rates['HTTP'] / rates['LLM.stream']:.3f}, median of pairs "
                f"{statistics.median(pairs):.3f}; same token ids in {len(prompts)} of {len(prompts)} prompts"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
