"""Which tokens are frequent: a ranking measured on text, for heads that score some tokens only (FR-Spec, 2502.14856)."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forerun.tokenizers.tokenizer import Tokenizer

# Characters of the library's text that are counted: enough to order the first ten thousand tokens.
_CHARACTERS = 3_000_000


def ranking(tokenizer: Tokenizer, texts: Iterable[str]) -> NDArray[np.int64]:
    """Every id that can be said, `[vocabulary less control tokens]`, the most useful for a small head first.

    First what ends a text and the single bytes, without which some texts could not be written; then by how often a
    token occurs in `texts`, mixed half and half with Zipf's law over the ids: byte-pair vocabularies are numbered by how
    early a pair was merged, so by how frequent it was in the tokenizer's own training text, of which `texts` are a small
    corner. Control tokens that end nothing are left out.
    """
    counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    for text in texts:
        np.add.at(counts, tokenizer.encode(text, add_bos=False), 1)
    first = np.zeros(tokenizer.vocab_size, dtype=np.bool_)
    kept = np.ones(tokenizer.vocab_size, dtype=np.bool_)
    kept[[token for token in tokenizer.control_ids if token < len(kept)]] = False
    ends = [token for token in tokenizer.eos_ids if token < len(kept)]
    first[ends] = kept[ends] = True
    for token in range(tokenizer.vocab_size):
        first[token] |= kept[token] and len(tokenizer.token_bytes(token)) == 1
    ids = np.flatnonzero(kept)
    expected = 1.0 / np.arange(1, tokenizer.vocab_size + 1)
    expected *= max(1, counts.sum()) / expected.sum()
    return ids[np.lexsort((ids, -(counts + expected)[ids], ~first[ids]))]


def library_texts() -> Iterator[str]:
    """Code and prose that every Python has: the sources of its standard library, with their documentation."""
    left = _CHARACTERS
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("**/*.py")):
        if {"test", "tests", "site-packages", "idlelib", "lib2to3", "encodings"} & set(file.parts):
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, ValueError):
            continue
        yield text[:left]
        left -= len(text)
        if left <= 0:
            return
