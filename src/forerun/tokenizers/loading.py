"""The tokenizer of a model file, whatever its format, without reading any weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forerun.errors import ModelFileError
from forerun.tokenizers.tokenizer import Tokenizer
from forerun.weights import Weights, model_file


def load_tokenizer(source: Weights | str | Path) -> Tokenizer:
    """The tokenizer of opened weights, or of a GGUF file or Hugging Face folder.

    Raises ModelFileError for a damaged vocabulary or one larger than the model's, UnsupportedModelError for a kind of
    tokenizer that is not known.
    """
    if not isinstance(source, Weights):
        path = model_file(source)
        return _folder(path) if path.is_dir() else _gguf(path)
    tokenizer = _gguf(source.path, source.metadata) if source.format == "gguf" else _folder(source.path)
    if tokenizer.vocab_size > source.spec.vocab_size:
        raise ModelFileError(
            f"{source.path}: the tokenizer has {tokenizer.vocab_size} tokens, the model rows for "
            f"{source.spec.vocab_size}: the files do not belong together"
        )
    return tokenizer


def _folder(path: Path) -> Tokenizer:
    from forerun.tokenizers.hugging_face import folder_tokenizer

    return folder_tokenizer(path)


def _gguf(path: Path, metadata: Mapping[str, Any] | None = None) -> Tokenizer:
    from forerun.tokenizers.gguf import gguf_tokenizer
    from forerun.weights.gguf_header import read_header

    return gguf_tokenizer(path, read_header(path, with_tensors=False).metadata if metadata is None else metadata)
