"""Models that are found and not loaded: tiny ones with weights, and some that must never be loaded."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from forerun.assembly.models import FoundModel, load_model
from forerun.config import Config
from forerun.core.model import Model
from forerun.tokenizers.tokenizer import Tokenizer, Vocabulary, byte_alphabet, byte_tokenizer
from forerun.weights import Weights
from forerun.weights.layout import validate
from tests.unit.backends.tiny import spec_of
from tests.unit.backends.tiny_cpu import WIDE, encoded


def never(kv_memory: int | None) -> Model:
    raise AssertionError("weights were loaded")


def weights(path: Path = Path("tiny.gguf"), kind: str = "F16", **changes: Any) -> Weights:
    """A decoder for the tokens of the byte tokenizer."""
    spec = spec_of("qwen3", **WIDE | {"vocab_size": 257} | changes)
    return Weights(path, "gguf", spec, validate(spec, encoded(spec, kind), path), {})


def tiny(name: str = "big", tokenizer: Tokenizer | None = None, *, loads: bool = False, **made: Any) -> FoundModel:
    """A model with weights of its own, run by the reference backend. loads: whether it may be loaded."""
    tokenizer = tokenizer or byte_tokenizer()
    opened = weights(**{"vocab_size": tokenizer.vocab_size} | made)
    load = partial(load_model, opened, tokenizer, name, Config(backend="reference"))
    return FoundModel(name, tokenizer, None, load if loads else never, opened)


def spelling(these: Iterable[int]) -> Tokenizer:
    """A tokenizer like the byte tokenizer for these bytes, in their order; the last id ends a text."""
    import tokenizers

    from forerun.tokenizers.engine import LocalEngine

    letter = {byte[0]: char for char, byte in byte_alphabet().items()}
    tokens = [*(letter[byte] for byte in these), "<|endoftext|>"]
    end = len(tokens) - 1
    engine = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=[])
    )
    engine.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine.add_special_tokens([tokenizers.AddedToken(tokens[-1], special=True, normalized=False)])
    only_end = frozenset({end})
    told = Vocabulary(tokens, only_end, only_end, "bytes", only_end, None, add_bos=False, eos_id=end)
    return Tokenizer(LocalEngine(engine), told)
