"""The reference decoder against transformers, on the same weights, both in fp32.

Differences are measured in units of the logits' standard deviation. They come from the order of sums alone; a wrong
formula anywhere makes them larger by orders of magnitude.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from forerun.backends.reference import ReferenceModel
from forerun.backends.reference.layers import Dequantized
from forerun.core.draft import ROOT, Draft
from forerun.core.model import ForwardInput, Needs
from forerun.models import resolve
from forerun.tokenizers.loading import load_tokenizer
from forerun.weights import open_weights
from forerun.weights.spec import RopeScaling, Spec
from tests.unit.backends.oracle import transformers_logits, transformers_model
from tests.unit.backends.tiny import Floats, random_tensors, spec_of, text

pytest.importorskip("transformers")
pytestmark = pytest.mark.oracle

TINY_TOLERANCE = 5e-5
REAL_TOLERANCE = 1e-4

YARN = RopeScaling("yarn", factor=4.0, original_context=64)
SPECS: dict[str, Spec] = {
    "llama": spec_of("llama"),
    "llama tied": spec_of("llama", tied=True, kv_heads=6),
    "llama one key head": spec_of("llama", kv_heads=1, head_dim=10, query_scale=10**-0.5, vocab_size=67),
    "llama linear": spec_of("llama", rope_scaling=RopeScaling("linear", factor=3.0)),
    "llama 3.1": spec_of(
        "llama",
        rope_base=500_000.0,
        rope_scaling=RopeScaling("llama3", 8.0, original_context=128, low_freq_factor=1.0, high_freq_factor=4.0),
    ),
    "llama yarn": spec_of("llama", rope_scaling=YARN),
    "llama yarn, factor given": spec_of("llama", rope_scaling=replace(YARN, attention_factor=0.8, truncate=False)),
    "llama yarn, mscale": spec_of("llama", rope_scaling=replace(YARN, mscale=0.7, mscale_all_dim=1.0, beta_fast=16.0)),
    "mistral": spec_of("mistral"),
    "mistral without window": spec_of("mistral", sliding=()),
    "qwen2": spec_of("qwen2"),
    "qwen2 with windows and a head": spec_of("qwen2", sliding=(0, 0, 33), tied=False, kv_heads=1),
    "qwen2 yarn": spec_of("qwen2", rope_scaling=YARN),
    "qwen3": spec_of("qwen3"),
    "qwen3 tied": spec_of("qwen3", tied=True, head_dim=20, query_scale=20**-0.5),
    "gemma3": spec_of("gemma3", sliding=(9, 9, 0)),
    "gemma3 linear": spec_of("gemma3", sliding=(70, 0, 70), rope_scaling=RopeScaling("linear", factor=8.0)),
}


def difference(ours: Floats, theirs: Floats) -> float:
    """Largest absolute difference, in standard deviations of the logits."""
    assert ours.shape == theirs.shape
    return float(np.abs(ours - theirs).max() / theirs.std())


def every_row(model: ReferenceModel, tokens: tuple[int, ...]) -> Floats:
    with model.forward([ForwardInput(model.open(), tokens)], Needs(every_row=True)) as output:
        rows: Floats = output.logits(0).copy()
    return rows


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_random_weights(spec: Spec) -> None:
    tensors = random_tensors(spec)
    tokens = text(200, vocab=spec.vocab_size)
    theirs = transformers_logits(transformers_model(spec, tensors), tokens)
    assert difference(every_row(ReferenceModel(spec, tensors, threads=1), tokens), theirs) < TINY_TOLERANCE


@pytest.mark.parametrize(
    "name", ["llama tied", "llama 3.1", "llama yarn", "mistral", "qwen2", "qwen3", "gemma3", "gemma3 linear"]
)
def test_through_a_folder(name: str, tmp_path: Path) -> None:
    spec = SPECS[name]
    theirs = transformers_model(spec, random_tensors(spec, 1))
    theirs.save_pretrained(tmp_path)
    tokens = text(150, 1, spec.vocab_size)
    ours = ReferenceModel.load(tmp_path, threads=1)
    assert difference(every_row(ours, tokens), transformers_logits(theirs, tokens)) < TINY_TOLERANCE


def test_the_tolerance_notices_a_wrong_formula() -> None:
    """Leaving out YaRN's factor on cos and sin, or one token of a window, is far outside."""
    for name, change in (
        ("llama yarn", {"rope_scaling": replace(YARN, attention_factor=1.0)}),
        ("mistral", {"sliding": (19, 18, 19)}),
        ("gemma3", {"embed_scale": 7.0}),
        ("llama", {"norm_eps": 1e-4}),
    ):
        tensors = random_tensors(SPECS[name])
        right = every_row(ReferenceModel(SPECS[name], tensors, threads=1), text(100))
        wrong = every_row(ReferenceModel(replace(SPECS[name], **change), tensors, threads=1), text(100))
        assert difference(wrong, right) > 2 * TINY_TOLERANCE, name


PASSAGE = """The harbour master kept two ledgers: one for the ships that came, and one for the ships that were late.

def fibonacci(n: int) -> int:
    \"\"\"The n-th Fibonacci number.\"\"\"
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a

Élodie répondit: « Ça coûte 12,50 € ». 東京は晴れです。 The answer, as ever, depends on what was asked.
"""


@pytest.mark.models
@pytest.mark.parametrize(("name", "repeats"), [("smollm2-135m", 1), ("qwen2.5-coder-0.5b", 1), ("gemma3-270m", 5)])
def test_real_weights(name: str, repeats: int) -> None:
    """The passage in two chunks, then a tree behind it. Gemma's text is longer than its window of 512."""
    weights = open_weights(resolve(name))
    tokens = tuple(load_tokenizer(weights).encode(PASSAGE * repeats))
    window = max(weights.spec.sliding, default=0)
    assert len(tokens) > window + 50
    draft = Draft((tokens[5], tokens[9], tokens[7], tokens[11]), (ROOT, ROOT, 0, 1))
    ours = ReferenceModel.from_weights(weights)
    kv = ours.open()
    with ours.forward([ForwardInput(kv, tokens[:70])]) as output:
        output.commit(0, ())
    with ours.forward([ForwardInput(kv, tokens[70:], draft)]) as output:
        rows = output.logits(0).copy()
    ours.close()
    theirs = transformers_model(weights.spec, Dequantized(weights.tensors))
    path = draft.path_to(3)
    expected = transformers_logits(theirs, tokens + tuple(draft.tokens[node] for node in path), last=3)
    assert difference(rows[[0, *(1 + node for node in path)]], expected) < REAL_TOLERANCE
