"""The table of families is the single source: files are told apart by it, and nobody else names a family."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forerun
from forerun.weights.architecture import ARCHITECTURES, BY_CLASS, BY_TYPE, Architecture
from forerun.weights.hf_config import spec_from_config
from tests.unit.backends.tiny import SPECS

Make = Callable[..., Any]
FAMILIES = list(ARCHITECTURES.values())


def test_no_name_means_two_families() -> None:
    assert len(ARCHITECTURES) == len(FAMILIES)
    assert len(BY_CLASS) == sum(len(family.classes) for family in FAMILIES)
    assert len(BY_TYPE) == sum(len(family.model_types) for family in FAMILIES)


def test_every_family_is_run_in_the_tests_of_backends() -> None:
    assert set(SPECS) == set(ARCHITECTURES)
    for name, spec in SPECS.items():
        family = ARCHITECTURES[name]
        assert (spec.architecture, spec.qk_norm, spec.post_norms) == (name, family.qk_norm, family.post_norms)
        assert (spec.activation, spec.embed_scale) == (family.activation, family.embed_scale(spec.width))
        assert (spec.rope_base_local is None) == (family.rope_base_local is None)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_config_is_told_by_its_class_or_its_type(make_tiny: Make, family: Architecture) -> None:
    config = make_tiny(family.name).config
    for name in family.classes:
        assert spec_from_config(config | {"architectures": [name]}, Path("m")).architecture == family.name
    for name in family.model_types:
        stated = config | {"architectures": [], "model_type": name}
        assert spec_from_config(stated, Path("m")).architecture == family.name


@pytest.mark.parametrize("folder", ["weights", "backends", "tokenizers", "text"])
def test_no_other_module_names_a_family(folder: str) -> None:
    """A condition on a name is what the record's fields are for."""
    root = Path(forerun.__file__).parent
    named = [
        f"{path.relative_to(root)}:{node.lineno} {node.value}"
        for path in sorted((root / folder).rglob("*.py"))
        if path.name != "architecture.py"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and node.value in ARCHITECTURES
    ]
    allowed = {"llama", "qwen2"}  # what GGUF files call a kind of tokenizer
    assert [line for line in named if folder != "tokenizers" or line.split()[1] not in allowed] == []


@pytest.mark.oracle
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_defaults_are_those_of_transformers(family: Architecture) -> None:
    transformers = pytest.importorskip("transformers")
    model = getattr(transformers, family.classes[0])
    default = model.config_class()
    stated = {
        "architectures": [family.classes[0]],
        "vocab_size": default.vocab_size,
        "hidden_size": default.hidden_size,
        "intermediate_size": default.intermediate_size,
        "num_hidden_layers": default.num_hidden_layers,
        "num_attention_heads": default.num_attention_heads,
        "num_key_value_heads": default.num_key_value_heads,
        "max_position_embeddings": default.max_position_embeddings,
    }
    spec = spec_from_config(stated, Path("m"))
    width = default.hidden_size // default.num_attention_heads
    assert spec.head_dim == (getattr(default, "head_dim", None) or width)
    assert spec.tied == default.tie_word_embeddings
    rope = default.rope_parameters
    whole = rope.get("full_attention", rope)
    assert spec.rope_base == whole["rope_theta"]
    assert spec.rope_base_local == (rope["sliding_attention"]["rope_theta"] if "sliding_attention" in rope else None)
    kinds = getattr(default, "layer_types", None)
    window = default.sliding_window if family.sliding != "none" else 0
    everywhere = family.sliding == "all"
    expected = [window if everywhere or (kinds and kinds[i] == "sliding_attention") else 0 for i in range(spec.layers)]
    assert [spec.window(i) for i in range(spec.layers)] == expected
