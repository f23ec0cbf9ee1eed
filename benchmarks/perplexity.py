"""Perplexity and top-1 agreement of the cpu backend against the fp32 reference decoder on the same file.

    python benchmarks/perplexity.py --model smollm2-135m --tokens 4000

The text is the project's own prose and code, mixed, in windows of 1,000 tokens.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from forerun.build import Plan, find_model
from forerun.core.protocols import Feed, Model, Needs

WINDOW, CHUNK = 1000, 250


def text() -> str:
    root = Path(__file__).resolve().parent.parent
    files = [*sorted(root.glob("*.md")), *sorted((root / "docs").glob("*.md")), *sorted((root / "src").rglob("*.py"))]
    return "\n\n".join(file.read_text(encoding="utf-8")[:1500] for file in files)


def judge(model: Model, tokens: list[int]) -> tuple[float, np.ndarray]:
    """Mean negative log-likelihood of the tokens after the first of each window, and the top-1 choice at each place."""
    losses, choices = [], []
    for start in range(0, len(tokens) - 1, WINDOW):
        window, kv = tokens[start : start + WINDOW], model.open()
        for at in range(0, len(window), CHUNK):
            chunk = tuple(window[at : at + CHUNK])
            with model.forward([Feed(kv, chunk)], Needs(every_row=True)) as scored:
                rows = scored.logits(0).astype(np.float64)
                scored.commit(0, ())
            following = window[at + 1 : at + 1 + len(chunk)]
            top = rows.max(axis=1)
            normaliser = top + np.log(np.exp(rows - top[:, None]).sum(axis=1))
            losses += [normaliser[i] - rows[i, token] for i, token in enumerate(following)]
            choices.append(rows.argmax(axis=1))
        kv.close()
    return float(np.mean(losses)), np.concatenate(choices)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=4000)
    arguments = parser.parse_args()
    plan = Plan(model=arguments.model, backend="cpu")
    ours = find_model(arguments.model, plan)
    tokens = ours.tokenizer.encode(text())[: arguments.tokens]
    loss, chosen = judge(ours.model, tokens)
    ours.model.close()
    oracle = find_model(arguments.model, replace(plan, backend="reference"))
    expected, wanted = judge(oracle.model, tokens)
    print(
        f"{arguments.model}: {len(tokens)} tokens, perplexity {np.exp(loss):.4f} against {np.exp(expected):.4f} "
        f"({np.exp(loss - expected) - 1:+.3%}), top-1 agreement {np.mean(chosen == wanted):.2%}"
    )


if __name__ == "__main__":
    main()
