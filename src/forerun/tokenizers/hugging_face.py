"""The tokenizer of a Hugging Face folder: tokenizer.json as it is, and what the files beside it say about its tokens."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers

from forerun.errors import ModelFileError, UnsupportedModelError
from forerun.tokenizers import tokenizer
from forerun.tokenizers.engine import ConfinedEngine, LocalEngine, damaged, load, translated
from forerun.tokenizers.plain import has_known_regexes, is_plain
from forerun.tokenizers.tokenizer import END_TOKENS, Vocabulary
from forerun.weights.hf_folder import LARGEST_JSON, read_json


def folder_tokenizer(folder: Path) -> tokenizer.Tokenizer:
    """The folder's tokenizer. Raises ModelFileError or UnsupportedModelError."""
    path = folder / "tokenizer.json"
    if not path.exists():
        raise ModelFileError(
            f"{path}: is missing: download it, or save the tokenizer again with transformers' fast tokenizers"
        )
    described = read_json(path, unique=True)
    plain = is_plain(described)
    engine = _vocabulary_of(path, described, plain)
    settings = _optional(folder / "tokenizer_config.json")
    model = _optional(folder / "config.json")
    generation = _optional(folder / "generation_config.json")
    tokens = _tokens(engine, model, path)
    added = engine.get_added_tokens_decoder()
    control = frozenset(i for i, token in added.items() if token.special)
    spelling, strips_space = _spelling(engine, path)
    bos = _named(engine, settings, "bos_token")
    eos = _named(engine, settings, "eos_token")
    ends = {eos} | _listed(generation) | _listed(model) | _listed(model.get("text_config"))
    ends |= {i for i in control if i < len(tokens) and tokens[i] in END_TOKENS}
    vocabulary = Vocabulary(
        tokens=tokens,
        control=control,
        literal=frozenset(added),
        spelling=spelling,
        eos_ids=frozenset(i for i in ends if i is not None and i < len(tokens)),
        eos_id=eos,
        bos_id=bos,
        add_bos=_adds_bos(engine, settings, bos, path),
        strips_space=strips_space,
        chat_template=_chat_template(folder, settings),
    )
    return tokenizer.Tokenizer(LocalEngine(engine) if plain else ConfinedEngine(path, engine), vocabulary)


def _vocabulary_of(path: Path, described: dict[str, Any], plain: bool) -> tokenizers.Tokenizer:
    """The file as the library reads it; of one that is not plain, without what runs over texts."""
    if plain:
        return load(path, path.read_text(encoding="utf-8"))
    if not has_known_regexes(described.get("decoder")):
        raise UnsupportedModelError(
            f"{path}: its decoder has a regular expression that is not known: choose another model"
        )
    return load(path, json.dumps({**described, "normalizer": None, "pre_tokenizer": None}, ensure_ascii=False))


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _tokens(engine: tokenizers.Tokenizer, model: dict[str, Any], path: Path) -> list[str]:
    """Strings by id. Ids past the model's table (Gemma's <image_soft_token> in text models) are left out."""
    vocabulary = engine.get_vocab(with_added_tokens=True)
    size = max(vocabulary.values(), default=-1) + 1
    if not 0 < size <= 2 * len(vocabulary) + 4096:
        raise ModelFileError(f"{path}: {len(vocabulary)} tokens have ids up to {size - 1}: the file is damaged")
    tokens = [""] * size
    for token, i in vocabulary.items():
        tokens[i] = token
    inner = model.get("text_config")
    rows = model.get("vocab_size") or (inner.get("vocab_size") if isinstance(inner, dict) else None)
    return tokens[:rows] if isinstance(rows, int) and rows > 0 else tokens


def _spelling(engine: tokenizers.Tokenizer, path: Path) -> tuple[Any, bool]:
    """How token strings spell bytes, and whether decoding strips the space that encoding put in front."""
    steps = _steps(json.loads(engine.decoder.__getstate__())) if engine.decoder else []
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return "bytes", False
    if "ByteFallback" in kinds or "Metaspace" in kinds or any(step.get("content") == " " for step in steps):
        metaspace = any(s.get("type") == "Metaspace" and s.get("prepend_scheme") != "never" for s in steps)
        strip = any(s.get("type") == "Strip" and s.get("content") == " " and s.get("start") for s in steps)
        return "pieces", metaspace or strip
    raise UnsupportedModelError(
        f"{path}: a decoder of type {', '.join(map(str, kinds)) or 'none'} is not known (ByteLevel and "
        "SentencePiece's are): choose another model"
    )


def _steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    return list(decoder["decoders"]) if decoder.get("type") == "Sequence" else [decoder]


def _named(engine: tokenizers.Tokenizer, settings: dict[str, Any], key: str) -> int | None:
    value = settings.get(key)
    content = value.get("content") if isinstance(value, dict) else value
    return engine.token_to_id(content) if isinstance(content, str) else None


def _listed(config: Any) -> set[int]:
    value = config.get("eos_token_id") if isinstance(config, dict) else None
    return {i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int) and i >= 0}


def _adds_bos(engine: tokenizers.Tokenizer, settings: dict[str, Any], bos: int | None, path: Path) -> bool:
    """The setting where there is one, else what the post-processor of tokenizer.json does."""
    if bos is None:
        return False
    stated = settings.get("add_bos_token")
    if isinstance(stated, bool):
        return stated
    with translated(partial(damaged, path)):
        return engine.encode("a", add_special_tokens=True).ids[:1] == [bos]


def _chat_template(folder: Path, settings: dict[str, Any]) -> str | None:
    """chat_template.jinja, else the setting: one template, or several by name of which `default` is meant."""
    file = folder / "chat_template.jinja"
    if file.exists():
        try:
            if file.stat().st_size > LARGEST_JSON:
                raise ModelFileError(f"{file}: is too large to be what its name says: download it again")
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFileError(f"{file}: cannot be read ({error}): download it again") from error
    stated = settings.get("chat_template")
    if isinstance(stated, list):
        named = {t.get("name"): t.get("template") for t in stated if isinstance(t, dict)}
        stated = named.get("default")
    return stated if isinstance(stated, str) else None
