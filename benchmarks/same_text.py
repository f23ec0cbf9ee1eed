"""Checks on real models that speculation changes no token: every draft against plain decoding, alone and several at a time.

    python benchmarks/same_text.py PROMPTS.jsonl --model smollm2-135m --drafts ngram suffix recycling --tokens 64

Plain decoding runs one request at a time; each draft then runs `--concurrency` at a time, and with `--alone` one at a time
too. Every comparison is equality of token ids. Prints one line per run and exits with 1 if any token differed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from forerun.answer import Answer
from forerun.assembly import FoundModel, build, find_model
from forerun.completion import Completion
from forerun.config import Config
from forerun.llm import LLM


def prompts(path: Path, limit: int) -> list[str]:
    """First turns, every category in turn, so that a limit takes some of each."""
    groups: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        text = entry["prompt"] if "prompt" in entry else entry["turns"][0]
        groups.setdefault(entry.get("category", ""), []).append(text)
    mixed: list[str] = []
    for index in range(max(map(len, groups.values()))):
        mixed += [group[index] for group in groups.values() if index < len(group)]
    return mixed[:limit] if limit else mixed


def load(target: FoundModel, draft: str, at_once: int, plan: dict[str, Any]) -> LLM:
    """A way to draft for the target. Whoever lets go of it closes the target too."""
    return LLM(build(Config(model=target.name, draft=draft, max_sequences=at_once, keep_prefixes=0, **plan), target))


def run(llm: LLM, asked: list[str], at_once: int, options: dict[str, Any]) -> tuple[list[Completion], float]:
    """The answers, and the seconds that they took."""
    # Nobody knows the answers beforehand, so what is expected back is the question.
    predicts = "prediction" in llm.assembly.draft
    started = time.perf_counter()
    answers = [
        Answer(llm.assembly, llm.ask(text, prediction=text if predicts else None, seed=index, **options))
        for index, text in enumerate(asked)
    ]
    for _ in llm.run(iter(answers), at_once):
        pass
    return [answer.completion() for answer in answers], time.perf_counter() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--drafts", nargs="+", default=["ngram"])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--limit", type=int, default=0, help="prompts, of all categories in turn; 0 is all")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--nodes", type=int, default=7)
    parser.add_argument("--controller", default="fixed", choices=["fixed", "goodput"])
    parser.add_argument("--backend", default="auto")
    arguments = parser.parse_args()

    asked = prompts(arguments.prompts, arguments.limit)
    plan = {
        "backend": arguments.backend,
        "controller": arguments.controller,
        "num_speculative_tokens": arguments.nodes,
    }
    target = find_model(arguments.model, Config(model=arguments.model, backend=arguments.backend))
    wrong = 0
    loaded: dict[tuple[str, int], LLM] = {}

    def once(way: tuple[str, int]) -> LLM:
        if way not in loaded:
            loaded[way] = load(target, *way, plan)
        return loaded[way]

    for temperature in arguments.temperatures:
        options = {"max_tokens": arguments.tokens, "temperature": temperature}
        plain, seconds = run(once(("none", 1)), asked, 1, options)
        tokens = sum(len(done.token_ids) for done in plain)
        print(f"T={temperature} none x1: {len(plain)} prompts, {tokens} tokens, {seconds:.0f} s", flush=True)
        for draft in ["none", *arguments.drafts]:
            for at_once in sorted({arguments.concurrency, *([1] if arguments.alone and draft != "none" else [])}):
                done, seconds = run(once((draft, at_once)), asked, at_once, options)
                different = [i for i, (a, b) in enumerate(zip(done, plain, strict=True)) if a.token_ids != b.token_ids]
                wrong += len(different)
                accepted = sum(one.stats.accepted for one in done)
                steps = sum(one.stats.spec_steps for one in done)
                print(
                    f"T={temperature} {draft} x{at_once}: {len(different)} of {len(done)} differ {different[:5]}, "
                    f"mean acceptance length {1 + accepted / max(1, steps):.2f}, {seconds:.0f} s",
                    flush=True,
                )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
