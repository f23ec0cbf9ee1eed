"""Lossless speculative decoding for the language models you run yourself: same text, fewer passes.

A program that answers one question:

    import forerun

    llm = forerun.LLM.load("smollm2-135m")
    print(llm.generate("Why is the sky blue?", max_tokens=64).text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forerun.answer import Stream
    from forerun.completion import Chunk, Completion, Timings, Usage
    from forerun.config import Config
    from forerun.core.draft import Draft
    from forerun.core.protocols import DraftRequest
    from forerun.core.request import Request, Speculation
    from forerun.core.sampling import Sampling
    from forerun.core.transcript import Transcript
    from forerun.drafters.base import Session, SessionDrafter
    from forerun.drafters.plugins import Host
    from forerun.errors import ForerunError
    from forerun.llm import LLM

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "Chunk",
    "Completion",
    "Config",
    "Draft",
    "DraftRequest",
    "ForerunError",
    "Host",
    "Request",
    "Sampling",
    "Session",
    "SessionDrafter",
    "Speculation",
    "Stream",
    "Timings",
    "Transcript",
    "Usage",
    "__version__",
]

_HOMES = {
    "LLM": "forerun.llm",
    "Stream": "forerun.answer",
    "Chunk": "forerun.completion",
    "Completion": "forerun.completion",
    "Timings": "forerun.completion",
    "Usage": "forerun.completion",
    "Config": "forerun.config",
    "Sampling": "forerun.core.sampling",
    "Request": "forerun.core.request",
    "Speculation": "forerun.core.request",
    "Draft": "forerun.core.draft",
    "DraftRequest": "forerun.core.protocols",
    "Transcript": "forerun.core.transcript",
    "Session": "forerun.drafters.base",
    "SessionDrafter": "forerun.drafters.base",
    "Host": "forerun.drafters.plugins",
    "ForerunError": "forerun.errors",
}


def __getattr__(name: str) -> Any:
    """Import public names when they are first asked for: the command line starts without loading what it does not use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'forerun' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
