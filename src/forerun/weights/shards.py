"""Which files a model consists of.

A GGUF model may be split as `llama-gguf-split` names the parts: `NAME-00001-of-00003.gguf` and so on. The first has the
key-values of the whole model, each has tensors of its own.
"""

from __future__ import annotations

import re
from pathlib import Path

_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)


def shards_of(path: Path) -> list[Path]:
    """The files of the model that a file belongs to, by its name: itself alone, or every part, there or not."""
    name = _NAME.fullmatch(path.name)
    if name is None:
        return [path]
    parts = range(1, int(name["count"]) + 1)
    return [path.with_name(f"{name['stem']}-{part:05}-of-{name['count']}{path.suffix}") for part in parts] or [path]


def files_of(path: Path) -> list[Path]:
    """The files that hold the tensors of a GGUF model or of a Hugging Face folder."""
    return sorted(path.glob("*.safetensors")) if path.is_dir() else [file for file in shards_of(path) if file.exists()]
