"""Whole answers beside llama.cpp on the same file: plain, drafting, and llama.cpp's own plain and prompt-lookup decoding.

    python benchmarks/end_to_end.py PROMPTS.jsonl [MORE.jsonl ...] --model qwen2.5-coder-1.5b --limit 20 --tokens 96

Every prompt is answered by every engine in turn, starting with another one each time, greedily and for the same number
of tokens. Tokens per second count from the first token on; `whole` includes reading the prompt. Needs llama-cpp-python.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from same_text import prompts

from forerun.assembly import FoundModel, build, find_model
from forerun.config import Config
from forerun.errors import ForerunError
from forerun.llm import LLM

# Seconds to the first token, seconds after it, the tokens.
Answer = tuple[float, float, list[int]]
# (text of the prompt, its tokens, how many to write)
Ask = Callable[[str, Sequence[int], int], Answer]


def forerun_with(target: FoundModel, draft: str, plan: dict[str, Any]) -> Ask:
    llm = LLM(build(Config(model=target.name, draft=draft, keep_prefixes=0, remember="nothing", **plan), target))

    def ask(text: str, _prompt: Sequence[int], tokens: int) -> Answer:
        done = llm.generate(text, max_tokens=tokens, ignore_eos=True)
        return done.timings.ttft_s, done.timings.decode_s, list(done.token_ids)

    return ask


def llama_cpp(file: Path, threads: int, lookup: bool) -> Ask:
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    drafting = {"draft_model": LlamaPromptLookupDecoding(num_pred_tokens=10)} if lookup else {}
    llama = Llama(str(file), n_ctx=4096, n_threads=threads, n_threads_batch=threads, verbose=False, **drafting)

    def ask(_text: str, prompt: Sequence[int], tokens: int) -> Answer:
        llama.reset()
        started = time.perf_counter()
        written: list[int] = []
        first = 0.0
        for token in llama.generate(list(prompt), temp=0.0):
            written.append(token)
            if len(written) == 1:
                first = time.perf_counter()
            if len(written) == tokens:
                break
        return first - started, time.perf_counter() - first, written

    return ask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path, nargs="+")
    parser.add_argument("--model", default="qwen2.5-coder-1.5b")
    parser.add_argument("--draft-model", default="qwen2.5-coder-0.5b")
    parser.add_argument("--limit", type=int, default=20, help="prompts of each file, of all categories in turn")
    parser.add_argument("--tokens", type=int, default=96)
    arguments = parser.parse_args()
    plan: dict[str, Any] = {"backend": "cpu"}
    target = find_model(arguments.model, Config(model=arguments.model, backend="cpu"))
    if target.weights is None:
        raise ForerunError(f"{arguments.model} has no file that llama.cpp could open.")
    threads = target.model.threads  # type: ignore[attr-defined]
    drafts = ["none", "ngram", f"model:{arguments.draft_model}@w4@head=32k", "auto"]
    engines = {f"forerun {draft}": forerun_with(target, draft, plan) for draft in drafts}
    engines["llama.cpp plain"] = llama_cpp(target.weights.path, threads, False)
    engines["llama.cpp prompt lookup"] = llama_cpp(target.weights.path, threads, True)
    names = list(engines)
    reader = LLM(build(Config(model=target.name, draft="none", **plan), target))
    for file in arguments.prompts:
        asked = [(text, reader.encode(text)) for text in prompts(file, arguments.limit)]
        spent = {name: [0.0, 0.0, 0] for name in names}
        for index, (text, prompt) in enumerate(asked):
            answers = {}
            for name in names[index % len(names) :] + names[: index % len(names)]:
                first, rest, written = answers[name] = engines[name](text, prompt, arguments.tokens)
                spent[name][0] += first
                spent[name][1] += rest
                spent[name][2] += len(written) - 1
            if len({tuple(answers[name][2]) for name in names if name.startswith("forerun")}) > 1:
                raise ForerunError(f"prompt {index} of {file.name}: a draft changed the text.")
        base_first, base_rest, _ = spent["forerun none"]
        print(f"{file.name}: {len(asked)} prompts, {arguments.tokens} tokens each, {threads} threads")
        for name in names:
            first, rest, tokens = spent[name]
            print(
                f"  {name:44s} {tokens / rest:7.1f} tokens/s, {base_rest / rest:5.2f}x plain, "
                f"whole {(base_first + base_rest) / (first + rest):5.2f}x"
            )


if __name__ == "__main__":
    main()
