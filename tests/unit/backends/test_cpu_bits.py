"""The promise of the cpu backend: a row's bits depend on its own tokens alone. Situations are drawn at random.

The oracle is one plain prefill by the portable code on one thread; everything else has to equal it bit for bit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.backends.cpu import CpuModel, missing_core
from forerun.backends.cpu.options import CpuOptions
from forerun.core.draft import EMPTY, ROOT, Draft
from forerun.core.model import KV, ForwardInput, Needs
from tests.unit.backends.tiny import Floats, text
from tests.unit.backends.tiny_cpu import cpu_contents, tiny_cpu

pytestmark = pytest.mark.skipif(missing_core() is not None, reason="the compiled core was not built")

# Architecture, encoding, and changes that make keys of several segments and tiles of several sizes.
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama-mixed": ("llama", "mixed", {"context": 700}),
    "qwen2-fp32": ("qwen2", "F32", {"context": 700}),
    "qwen3-groups": ("qwen3", "Q4_1", {"context": 700, "heads": 14, "kv_heads": 2}),
    "gemma3-windows": ("gemma3", "Q8_0", {"context": 700, "heads": 4, "kv_heads": 1, "head_dim": 24, "sliding": (9, 300, 0)}),
}  # fmt: skip
TOKENS = st.integers(0, 100)


def isas() -> list[str]:
    from forerun.backends.cpu import _core

    return _core.supported_isas()


@cache
def model_of(name: str, isa: str, threads: int, kv_dtype: str) -> CpuModel:
    architecture, kind, changes = MODELS[name]
    options = CpuOptions(threads=threads, isa=isa, kv_dtype=kv_dtype)  # type: ignore[arg-type]
    return tiny_cpu(architecture, kind, options=options, **changes)


def oracle(name: str, kv_dtype: str, tokens: tuple[int, ...], isa: str = "portable") -> tuple[Floats, KV]:
    """Every row's logits and the KV of `tokens`, in one pass without company."""
    model = model_of(name, isa, 1, kv_dtype)
    kv = model.open()
    with model.forward([ForwardInput(kv, tokens)], Needs(every_row=True)) as output:
        rows = output.logits(0).copy()
        output.commit(0, ())
    return rows, kv


def same(left: Floats, right: Floats) -> bool:
    return left.shape == right.shape and left.tobytes() == right.tobytes()


@st.composite
def trees(draw: st.DrawFn, most: int) -> Draft:
    size = draw(st.integers(0, most))
    shape = draw(st.sampled_from(["chain", "star", "any"]))
    parents: dict[str, Callable[[int], int]] = {
        "chain": lambda node: node - 1,
        "star": lambda node: ROOT,
        "any": lambda node: draw(st.integers(ROOT, node - 1)),
    }
    return Draft(tuple(draw(TOKENS) for _ in range(size)), tuple(parents[shape](node) for node in range(size)))


def feed_in_chunks(model: CpuModel, kv: KV, tokens: tuple[int, ...], chunk: int) -> None:
    for at in range(0, len(tokens), chunk):
        with model.forward([ForwardInput(kv, tokens[at : at + chunk], logits=False)]) as output:
            output.commit(0, ())


@settings(max_examples=50, deadline=None)
@given(
    name=st.sampled_from(sorted(MODELS)),
    isa=st.sampled_from(["portable", "neon", "avx2", "avx512"]),
    threads=st.integers(1, 2),
    kv_dtype=st.sampled_from(["fp16", "fp32"]),
    length=st.one_of(st.integers(1, 70), st.sampled_from([255, 256, 257, 300])),
    chunk=st.sampled_from([1, 7, 64, 256, 1000]),
    draft=trees(63),
    data=st.data(),
)
def test_a_row_has_the_same_bits_in_any_situation(
    name: str, isa: str, threads: int, kv_dtype: str, length: int, chunk: int, draft: Draft, data: st.DataObject
) -> None:
    if isa not in isas():
        isa = isas()[-1]
    prompt = text(length, length)
    model = model_of(name, isa, threads, kv_dtype)
    kv = model.open()
    feed_in_chunks(model, kv, prompt[:-1], max(chunk, length // 40))

    # Company: other sequences, prefilling, decoding or verifying, before and behind.
    inputs = [ForwardInput(kv, prompt[-1:], draft)]
    for seed in range(data.draw(st.integers(0, 4), "others")):
        other = ForwardInput(model.open(), text(data.draw(st.integers(1, 30)), seed), data.draw(trees(5)))
        inputs.insert(data.draw(st.integers(0, len(inputs))), other)
    mine = next(i for i, feed in enumerate(inputs) if feed.kv is kv)
    path = draft.path_to(data.draw(st.integers(ROOT, len(draft) - 1), "leaf"))
    with model.forward(inputs) as output:
        rows = output.logits(mine).copy()
        output.commit(mine, path)

    checked = {
        ROOT,
        *path[-1:],
        *data.draw(st.sets(st.integers(0, len(draft) - 1), max_size=3) if len(draft) else st.just(set())),
    }
    for node in checked:
        tokens = prompt + tuple(draft.tokens[n] for n in draft.path_to(node))
        wanted, _ = oracle(name, kv_dtype, tokens)
        assert same(rows[1 + node], wanted[-1])
    _, fresh = oracle(name, kv_dtype, prompt + tuple(draft.tokens[n] for n in path))
    for left, right in zip(cpu_contents(kv), cpu_contents(fresh), strict=True):  # type: ignore[arg-type]
        assert same(left, right)


@pytest.mark.parametrize("rows", range(1, 65))
def test_any_number_of_rows(rows: int) -> None:
    """A chain of each length: row i of every pass is the row that a prefill gives."""
    wanted, _ = oracle("qwen3-groups", "fp16", text(70 + rows))
    for isa in isas()[1:]:
        model = model_of("qwen3-groups", isa, 2, "fp16")
        kv = model.open()
        feed_in_chunks(model, kv, text(70 + rows)[:70], 70)
        with model.forward([ForwardInput(kv, text(70 + rows)[70:71], Draft.chain(text(70 + rows)[71:]))]) as output:
            assert same(output.logits(0), wanted[70:])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("boundary", [64, 256])
def test_trees_across_pages_and_segments(name: str, boundary: int) -> None:
    """Siblings first, then their children, over the last positions of a page or segment."""
    width, depth = 3, 4
    draft = Draft(tuple(range(width * depth)), tuple(max(node - width, ROOT) for node in range(width * depth)))
    prompt = text(boundary - 2, boundary)
    wanted = [
        oracle(name, "fp16", prompt + tuple(draft.tokens[n] for n in draft.path_to(node)), isas()[-1])[0][-1]
        for node in range(ROOT, len(draft))
    ]
    for isa in isas():
        model = model_of(name, isa, 2, "fp16")
        kv = model.open()
        feed_in_chunks(model, kv, prompt[:-1], 100)
        with model.forward([ForwardInput(kv, prompt[-1:], draft)]) as output:
            assert same(output.logits(0), np.stack(wanted))


@pytest.mark.parametrize("before", [1, 5, 60, 64, 100, 250])
def test_windows_shorter_than_a_draft(before: int) -> None:
    """Deep nodes see nothing but nodes: no key of theirs lies in a page."""
    tokens = text(before + 40, before)
    wanted, _ = oracle("gemma3-windows", "fp16", tokens, isas()[-1])
    for isa, threads, kv_dtype in [
        (isa, threads, kv) for isa in isas() for threads in (1, 2) for kv in ("fp16", "fp32")
    ]:
        model = model_of("gemma3-windows", isa, threads, kv_dtype)
        kv = model.open()
        feed_in_chunks(model, kv, tokens[: before - 1], 64)
        with model.forward([ForwardInput(kv, tokens[before - 1 : before], Draft.chain(tokens[before:]))]) as output:
            rows = output.logits(0).copy()
        if kv_dtype == "fp16":
            assert same(rows, wanted[before - 1 :])
        else:
            assert same(rows, oracle("gemma3-windows", "fp32", tokens, isas()[-1])[0][before - 1 :])


def test_forerun_isa_forces_an_instruction_set() -> None:
    code = "from forerun.backends.cpu import _core; print(_core.active_isa())"
    run = [sys.executable, "-c", code]
    for isa in isas():
        done = subprocess.run(run, env=os.environ | {"FORERUN_ISA": isa}, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [isa]
    failed = subprocess.run(run, env=os.environ | {"FORERUN_ISA": "sse2"}, capture_output=True, text=True, check=False)
    assert failed.returncode != 0
    assert "sse2" in failed.stderr


def test_a_pass_without_feeds_or_drafts_changes_nothing() -> None:
    model = model_of("llama-mixed", isas()[-1], 2, "fp16")
    kv = model.open()
    feed_in_chunks(model, kv, text(100), 30)
    before = [half.copy() for half in cpu_contents(kv)]
    with model.forward([]):
        pass
    with model.forward([ForwardInput(kv, (1,), EMPTY)]):
        pass
    assert all(np.array_equal(left, right) for left, right in zip(before, cpu_contents(kv), strict=True))
