"""The tokenizer inside a GGUF file, rebuilt as a `tokenizers` object: byte-level BPE and SentencePiece BPE.

SentencePiece merges the neighbors whose joined piece scores best; a list of merges ordered by that score does the same.
User-defined pieces (runs of spaces, tabs, newlines) match before any merging, as the longest one at each place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from forerun.errors import ModelFileError, UnsupportedModelError
from forerun.tokenizers import tokenizer
from forerun.tokenizers.engine import LocalEngine, translated
from forerun.tokenizers.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from forerun.tokenizers.tokenizer import END_TOKENS, SPACE, Vocabulary
from forerun.weights.fields import Fields

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
# Characters of a piece that is merged; every way to cut it in two is looked at.
LONGEST_PIECE = 1000
_PADDING = re.compile(r"\[PAD\d+\]")
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def gguf_tokenizer(path: Path, metadata: Mapping[str, Any]) -> tokenizer.Tokenizer:
    """The tokenizer that the key-values of a GGUF file describe. Raises ModelFileError or UnsupportedModelError."""
    fields = Fields(path, metadata)
    kind = fields.text("tokenizer.ggml.model")
    tokens, types = _tokens(fields)
    if kind == "llama":
        # Converters write the spaces of user-defined pieces as spaces; the original spells them as in all others.
        tokens = [t.replace(" ", SPACE) if k == USER_DEFINED else t for t, k in zip(tokens, types, strict=True)]
    with translated(partial(_unfit, path)):
        if kind == "gpt2":
            pre = _pre_tokenizer(fields)
            engine, vocabulary = _byte_level(fields, tokens, pre), _vocabulary(fields, tokens, types, pre)
        elif kind == "llama":
            engine, vocabulary = _sentencepiece(fields, tokens, types), _vocabulary(fields, tokens, types, None)
        else:
            raise UnsupportedModelError(
                f"{path}: tokenizer model {kind!r} is not known (gpt2 and llama are): choose another model"
            )
        _add_tokens(engine, tokens, types, kind == "llama")
    return tokenizer.Tokenizer(LocalEngine(engine), vocabulary)


def _unfit(path: Path, what: str) -> ModelFileError:
    return ModelFileError(f"{path}: the vocabulary does not fit together ({what}): the file is damaged")


def _tokens(fields: Fields) -> tuple[list[str], list[int]]:
    """Strings and types by id, without the padding at the end."""
    listed = fields.values.get("tokenizer.ggml.tokens")
    if not isinstance(listed, Sequence) or isinstance(listed, str) or not len(listed):
        raise ModelFileError(
            f"{fields.path}: tokenizer.ggml.tokens is missing: the file is incomplete, download it again"
        )
    tokens = list(listed)
    types = [int(t) for t in _numbers(fields, "tokenizer.ggml.token_type", len(tokens), NORMAL)]
    size = len(tokens)
    while size and types[size - 1] == UNUSED and _PADDING.fullmatch(tokens[size - 1]):
        size -= 1
    return tokens[:size], types[:size]


def _numbers(fields: Fields, key: str, count: int, default: int) -> Any:
    values = fields.values.get(key)
    if values is None:
        return np.full(count, default)
    if not isinstance(values, np.ndarray) or len(values) != count:
        raise ModelFileError(
            f"{fields.path}: {key} is not one number per token: the file is damaged, download it again"
        )
    return values


def _pre_tokenizer(fields: Fields) -> PreTokenizer:
    name = fields.text("tokenizer.ggml.pre", "default")
    if name not in PRE_TOKENIZERS:
        raise UnsupportedModelError(
            f"{fields.path}: pre-tokenizer {name!r} is not known ({', '.join(PRE_TOKENIZERS)} are): "
            "use the model's Hugging Face folder instead"
        )
    return PRE_TOKENIZERS[name]


def _byte_level(fields: Fields, tokens: list[str], pre: PreTokenizer) -> Tokenizer:
    listed = fields.values.get("tokenizer.ggml.merges")
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise ModelFileError(
            f"{fields.path}: tokenizer.ggml.merges is missing: the file is incomplete, download it again"
        )
    merges = [tuple(merge.split(" ")) for merge in listed]
    engine = Tokenizer(models.BPE(vocab=_ids(tokens), merges=merges, ignore_merges=pre.ignore_merges))
    if pre.normalizer == "NFC":
        engine.normalizer = normalizers.NFC()
    engine.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in pre.splits]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    engine.decoder = decoders.ByteLevel()
    return engine


def _sentencepiece(fields: Fields, tokens: list[str], types: list[int]) -> Tokenizer:
    count = len(fields.values["tokenizer.ggml.tokens"])
    scores = np.asarray(_numbers(fields, "tokenizer.ggml.scores", count, 0), dtype=np.float64)[: len(tokens)]
    unknown = fields.integer("tokenizer.ggml.unknown_token_id", 0, least=0)
    if unknown >= len(tokens):
        raise ModelFileError(f"{fields.path}: tokenizer.ggml.unknown_token_id is not a token: the file is damaged")
    normal = np.flatnonzero(np.asarray(types) == NORMAL)
    longest = max((len(tokens[i]) for i in normal), default=0)
    if longest > LONGEST_PIECE:
        raise ModelFileError(f"{fields.path}: a token is {longest} characters long: the file is damaged")
    best_first = normal[np.argsort(-scores[normal], kind="stable")].tolist()
    model = models.BPE(
        vocab=_ids(tokens),
        merges=_merges([tokens[i] for i in best_first]),
        unk_token=tokens[unknown],
        byte_fallback=BYTE in types,
        fuse_unk=True,
    )
    engine = Tokenizer(model)
    engine.normalizer = normalizers.Replace(" ", SPACE)
    engine.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return engine


def _adds_space(fields: Fields) -> bool:
    return fields.flag("tokenizer.ggml.add_space_prefix", True)


def _merges(best_first: list[str]) -> list[tuple[str, str]]:
    """Every way to join two pieces into a third, best third first; of the ways to one piece, the longest left side first."""
    known, merges = set(best_first), []
    for piece in best_first:
        for cut in range(len(piece) - 1, 0, -1):
            left, right = piece[:cut], piece[cut:]
            if left in known and right in known:
                merges.append((left, right))
    return merges


def _ids(tokens: list[str]) -> dict[str, int]:
    """Id of each string; of a string that stands for several ids, the first."""
    ids: dict[str, int] = {}
    for i, token in enumerate(tokens):
        ids.setdefault(token, i)
    return ids


def _add_tokens(engine: Tokenizer, tokens: list[str], types: list[int], pieces: bool) -> None:
    """Control tokens match where the caller asks, user-defined ones always (pieces in text with its spaces replaced)."""
    for wanted, special in ((CONTROL, True), (UNKNOWN, True), (USER_DEFINED, False)):
        added = [
            AddedToken(token, special=special, normalized=pieces and not special)
            for token, kind in zip(tokens, types, strict=True)
            if kind == wanted and token
        ]
        if special:
            engine.add_special_tokens(added)
        else:
            engine.add_tokens(added)


def _vocabulary(fields: Fields, tokens: list[str], types: list[int], pre: PreTokenizer | None) -> Vocabulary:
    pieces = pre is None
    control = frozenset(i for i, kind in enumerate(types) if kind in (CONTROL, UNKNOWN))
    named = [_id(fields, key, len(tokens)) for key in _EOS_KEYS]
    ends = {i for i in named if i is not None} | {i for i in control if tokens[i] in END_TOKENS}
    return Vocabulary(
        tokens=tokens,
        control=control,
        literal=control | {i for i, kind in enumerate(types) if kind == USER_DEFINED},
        spelling="pieces" if pieces else "bytes",
        eos_ids=frozenset(ends),
        eos_id=named[0],
        bos_id=_id(fields, "bos_token_id", len(tokens)),
        add_bos=fields.flag("tokenizer.ggml.add_bos_token", True if pre is None else pre.add_bos),
        strips_space=pieces and _adds_space(fields),
        adds_space=pieces and _adds_space(fields),
        chat_template=fields.text("tokenizer.chat_template") if fields.has("tokenizer.chat_template") else None,
    )


def _id(fields: Fields, name: str, count: int) -> int | None:
    key = f"tokenizer.ggml.{name}"
    if not fields.has(key):
        return None
    value = fields.values[key]
    # Some converters write 2**32 - 1 or -1 for "none".
    if value in (-1, 2**32 - 1):
        return None
    if not isinstance(value, int) or not 0 <= value < count:
        raise ModelFileError(f"{fields.path}: {key} is {value!r}, not one of {count} tokens: the file is damaged")
    return value
