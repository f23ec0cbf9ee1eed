"""What the drafters that run no model cost per token: `python benchmarks/drafters.py [--tokens N] [--text FILE]`.

A text is written into the drafter a few tokens a step, as an engine would: propose, then observe what was committed.
The text is Python's own standard library, cut into words and marks, so it needs no tokenizer and no model.
"""

from __future__ import annotations

import argparse
import re
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from forerun.core.protocols import Drafter
from forerun.core.request import Request
from forerun.core.step import StepResult
from forerun.core.transcript import Transcript
from forerun.drafters.history import History
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.testing import draft_of


def read_tokens(count: int, text: Path | None) -> list[int]:
    """`count` token ids of real text."""
    files = [text] if text else sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    ids: dict[str, int] = {}
    tokens: list[int] = []
    for file in files:
        words = re.findall(r" ?\w+|\s+|.", file.read_text(encoding="utf-8", errors="replace"))
        tokens += [ids.setdefault(word, len(ids)) for word in words]
        if len(tokens) >= count:
            break
    return tokens[:count]


def write(drafter: Drafter, prompt: Sequence[int], output: Sequence[int], budget: int) -> tuple[float, float, float]:
    """Microseconds of processor time per token (reading the prompt; then writing), and tokens per step, for one request."""
    transcript = Transcript(Request(prompt))
    session = drafter.open(transcript)
    started = time.process_time()
    draft_of(drafter, session, budget)
    read = time.process_time() - started
    written, steps, spent = 0, 0, 0.0
    while written < len(output):
        started = time.process_time()
        draft = draft_of(drafter, session, budget)
        spent += time.process_time() - started
        node, path = -1, []
        for token in output[written:]:
            node = next((child for child in draft.children(node) if draft.tokens[child] == token), -2)
            if node == -2:
                break
            path.append(node)
        tokens = tuple(output[written : written + len(path) + 1])
        for token in tokens:
            transcript.add(token)
        started = time.process_time()
        session.observe(StepResult(transcript, (0,), draft, tuple(path), tokens))
        spent += time.process_time() - started
        written, steps = written + len(tokens), steps + 1
    started = time.process_time()
    session.finish()
    session.close()
    spent += time.process_time() - started
    return read / len(prompt) * 1e6, spent / written * 1e6, written / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tokens", type=int, default=100_000, help="length of the history or prompt")
    parser.add_argument("--written", type=int, default=4_000, help="tokens written after it")
    parser.add_argument("--budget", type=int, default=8)
    parser.add_argument("--text", type=Path, help="a text file; the standard library's sources by default")
    options = parser.parse_args()
    tokens = read_tokens(options.tokens + options.written, options.text)
    old, new = tokens[: -options.written], tokens[-options.written :]
    print(
        f"{len(old):,} tokens of history, {len(new):,} written, budget {options.budget}, {np.unique(tokens).size:,} ids"
    )
    print(f"{'':28}{'read us/token':>15}{'write us/token':>16}{'tokens/step':>14}")
    history = History(4 * len(old))
    for start in range(0, len(old), 2000):
        history.space().add(old[start : start + 2000])
    for name, drafter, prompt in (
        ("ngram, in the prompt", NgramDrafter(), old),
        ("suffix, in the prompt", SuffixDrafter(), old),
        ("suffix, in the history", SuffixDrafter(history), new[:100]),
    ):
        read, wrote, length = write(drafter, prompt, new[100:], options.budget)
        print(f"{name:28}{read:15.1f}{wrote:16.1f}{length:14.2f}")


if __name__ == "__main__":
    main()
