"""Which tokens a draft model's head scores, where it scores some only (FR-Spec, 2502.14856)."""

from __future__ import annotations

import contextlib
import json
import re
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forerun.assembly.models import FoundModel
from forerun.core.files import default_home, set_aside, writing
from forerun.errors import UsageError
from forerun.tokenizers.frequency import library_texts, ranking
from forerun.tokenizers.tokenizer import Tokenizer

_SIZE = re.compile(r"(\d+)(k?)")


def head_ids(wanted: str, target: FoundModel) -> NDArray[np.int64]:
    """The ids of a head by size (`24k`, `24000`) or by file: a list of ids, or a text whose frequent tokens are meant.

    Raises UsageError.
    """
    size = _SIZE.fullmatch(wanted)
    if size:
        rows = int(size[1]) * (1024 if size[2] else 1)
        if not rows:
            raise UsageError("a head of no rows proposes nothing; give a size such as @head=32k.")
        return np.sort(_ranking(target)[:rows])
    try:
        text = Path(wanted).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"@head={wanted} is neither a size such as 32k nor a file that can be read ({error})."
        ) from None
    with contextlib.suppress(ValueError, TypeError):
        ids = json.loads(text) if text.lstrip().startswith("[") else text.split()
        return np.array([int(token) for token in ids], dtype=np.int64)
    return np.sort(ranking(target.tokenizer, [text])[: 32 * 1024])


def _ranking(target: FoundModel) -> NDArray[np.int64]:
    """The target's tokens, the most frequent first: measured once for a vocabulary, and kept."""
    path = default_home() / "heads" / f"{target.vocabulary}.npy"
    try:
        return _read_ranking(path, target.tokenizer)
    except OSError:
        pass  # there is none, or none that can be read
    except (ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        set_aside(path, error)
    found = ranking(target.tokenizer, library_texts())
    # Without a place to keep it, it is measured again next time.
    with contextlib.suppress(OSError), writing(path) as file:
        np.save(file, found.astype(np.int32))
    return found


def _read_ranking(path: Path, tokenizer: Tokenizer) -> NDArray[np.int64]:
    kept = np.load(path, allow_pickle=False)
    if kept.dtype != np.int32 or kept.ndim != 1 or len(np.unique(kept)) < len(kept):
        raise ValueError("not a ranking of tokens")
    if not len(kept) or kept.min() < 0 or kept.max() >= tokenizer.vocab_size:
        raise ValueError("its ids are out of range")
    ids: NDArray[np.int64] = kept.astype(np.int64)
    return ids
