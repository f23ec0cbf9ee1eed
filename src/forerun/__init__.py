"""Lossless speculative decoding for the language models you run yourself: same text, fewer passes.

import forerun

llm = forerun.LLM.load("smollm2-135m")
print(llm.generate("Why is the sky blue?", max_tokens=64).text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forerun.completion import Chunk, Completion, Timings, Usage
    from forerun.core.sampling import Sampling
    from forerun.errors import ForerunError
    from forerun.llm import LLM, Stream

__version__ = "0.1.0"
__all__ = ["LLM", "Chunk", "Completion", "ForerunError", "Sampling", "Stream", "Timings", "Usage", "__version__"]

_HOMES = {
    "LLM": "forerun.llm",
    "Stream": "forerun.llm",
    "Chunk": "forerun.completion",
    "Completion": "forerun.completion",
    "Timings": "forerun.completion",
    "Usage": "forerun.completion",
    "Sampling": "forerun.core.sampling",
    "ForerunError": "forerun.errors",
}


def __getattr__(name: str) -> Any:
    """Import public names when they are first asked for: the command line starts without loading what it does not use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'forerun' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
