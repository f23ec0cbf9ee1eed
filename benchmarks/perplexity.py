"""Perplexity and top-1 agreement of the cpu backend, and of llama.cpp, against the fp32 reference decoder on the same file.

    python benchmarks/perplexity.py --model smollm2-135m --tokens 4000 [--peer llamacpp]

The text is the project's own prose and code, mixed, in windows of 1,000 tokens.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forerun.assembly import find_model
from forerun.backends.cores import usable_cores
from forerun.bench.peers import LlamaCpp
from forerun.config import Config
from forerun.core.model import ForwardInput, Model, Needs

WINDOW, CHUNK = 1000, 250


def text() -> str:
    root = Path(__file__).resolve().parent.parent
    files = [*sorted(root.glob("*.md")), *sorted((root / "docs").glob("*.md")), *sorted((root / "src").rglob("*.py"))]
    return "\n\n".join(file.read_text(encoding="utf-8")[:1500] for file in files)


def judge(windows: Iterable[Iterable[NDArray[np.float32]]], tokens: list[int]) -> tuple[float, NDArray[np.int64]]:
    """Mean negative log-likelihood of the tokens after the first of each window, and the top-1 choice at each place.

    windows: for each window of the tokens, logits `[CHUNK, vocab]` chunk by chunk.
    """
    losses, choices = [], []
    for start, chunks in zip(range(0, len(tokens) - 1, WINDOW), windows, strict=True):
        window, at = tokens[start : start + WINDOW], 0
        for chunk in chunks:
            rows = chunk.astype(np.float64)
            following = window[at + 1 : at + 1 + len(rows)]
            top = rows.max(axis=1)
            normalizer = top + np.log(np.exp(rows - top[:, None]).sum(axis=1))
            losses += [normalizer[i] - rows[i, token] for i, token in enumerate(following)]
            choices.append(rows.argmax(axis=1))
            at += len(rows)
    return float(np.mean(losses)), np.concatenate(choices)


def chunks_of(tokens: list[int]) -> Iterator[list[tuple[int, ...]]]:
    """The windows, each as its chunks."""
    for start in range(0, len(tokens) - 1, WINDOW):
        window = tokens[start : start + WINDOW]
        yield [tuple(window[at : at + CHUNK]) for at in range(0, len(window), CHUNK)]


def ours(model: Model, tokens: list[int]) -> Iterator[Iterator[NDArray[np.float32]]]:
    """Logits of a forerun model."""

    def window(chunks: list[tuple[int, ...]]) -> Iterator[NDArray[np.float32]]:
        kv = model.open()
        for chunk in chunks:
            with model.forward([ForwardInput(kv, chunk)], Needs(every_row=True)) as output:
                yield output.logits(0)
                output.commit(0, ())
        kv.close()

    return map(window, chunks_of(tokens))


def theirs(peer: LlamaCpp, tokens: list[int]) -> Iterator[Iterator[NDArray[np.float32]]]:
    """Logits of llama.cpp."""

    def window(chunks: list[tuple[int, ...]]) -> Iterator[NDArray[np.float32]]:
        peer.read(())
        return map(peer.score, chunks)

    return map(window, chunks_of(tokens))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--peer", choices=["llamacpp"])
    arguments = parser.parse_args()
    plan = Config(model=arguments.model, backend="cpu")
    found = find_model(arguments.model, plan)
    tokens = found.tokenizer.encode(text())[: arguments.tokens]
    judged = {"forerun cpu": judge(ours(found.model, tokens), tokens)}
    if arguments.peer:
        assert found.weights is not None
        peer = LlamaCpp(found.weights.path, threads=usable_cores(), context=WINDOW)
        judged[peer.name] = judge(theirs(peer, tokens), tokens)
        peer.close()
    found.model.close()
    oracle = find_model(arguments.model, replace(plan, backend="reference"))
    expected, wanted = judge(ours(oracle.model, tokens), tokens)
    print(f"{arguments.model}: {len(tokens)} tokens, perplexity of the fp32 reference {np.exp(expected):.4f}")
    for name, (loss, chosen) in judged.items():
        print(
            f"{name}: perplexity {np.exp(loss):.4f} ({np.exp(loss - expected) - 1:+.3%}), "
            f"top-1 agreement {np.mean(chosen == wanted):.2%}"
        )


if __name__ == "__main__":
    main()
