"""The same question with speculation and without: same text, how much sooner? Usage: compare.py [MODEL [DRAFT]]

This is what `make demo` runs.
"""

import sys
import time

import forerun
from forerun.models import TerminalProgress

QUESTION = "Write a Python function that returns the largest of three numbers, with an example."

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
draft = sys.argv[2] if len(sys.argv) > 2 else "auto"


def answer(draft: str, show: bool) -> tuple[forerun.Completion, float]:
    """The answer and the seconds that it took, loading not included."""
    with forerun.LLM.load(model, draft=draft, progress=TerminalProgress()) as llm:
        started = time.perf_counter()
        stream = llm.stream(QUESTION, max_tokens=320)
        for chunk in stream:
            if show:
                print(chunk.text, end="", flush=True)
        return stream.completion, time.perf_counter() - started


def line(name: str, width: int, completion: forerun.Completion, seconds: float) -> str:
    """One row of the comparison."""
    speed, stats = completion.timings.tokens_per_second, completion.stats
    length = f"mean acceptance length {stats.mean_acceptance_length:.2f}" if stats.spec_steps else ""
    return f"  {name:<{width}}{speed:8.1f} tokens/s {seconds:6.2f} s {stats.steps:4} steps  {length}".rstrip()


print(f"> {QUESTION}\n")
fast, fast_s = answer(draft, show=True)
print(f"\n\n{fast.usage.completion_tokens} tokens by {fast.model} on the {fast.backend} backend:")
width = max(len("plain"), len(fast.draft))
print(line(fast.draft, width, fast, fast_s))
plain, plain_s = answer("none", show=False)
print(line("plain", width, plain, plain_s))
print(f"  same text: {'yes' if fast.token_ids == plain.token_ids else 'NO'}")
