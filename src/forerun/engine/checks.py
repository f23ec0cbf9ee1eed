"""What a request must be to run at all, found before anything waits for it."""

from __future__ import annotations

from collections.abc import Iterable

from forerun.core.model import ModelInfo
from forerun.core.request import Request
from forerun.errors import PromptError, unknown


def check(request: Request, info: ModelInfo, context: int, drafts: Iterable[str], verifiers: Iterable[str]) -> None:
    """Raise PromptError or UsageError for a request that can never run.

    info: of the target. context: tokens that its memory has room for. drafts, verifiers: what may be asked for by name.
    """
    if not request.prompt:
        raise PromptError("the prompt is empty; give at least one token of text.")
    wrong = next((token for token in request.prompt if not 0 <= token < info.usable_vocab), None)
    if wrong is not None:
        raise PromptError(f"the prompt holds the token id {wrong}, but {info.name} has {info.usable_vocab} tokens.")
    if len(request.prompt) >= info.context:
        raise PromptError(
            f"the prompt has {len(request.prompt)} tokens, but {info.name} holds {info.context} and needs room for "
            "an answer; shorten the prompt."
        )
    if len(request.prompt) >= context:
        raise PromptError(
            f"the prompt has {len(request.prompt)} tokens, but the memory for keys and values holds {context}; "
            "shorten the prompt, or give more memory (--kv-memory)."
        )
    asked = request.speculation
    if asked.draft is not None and asked.draft not in drafts:
        raise unknown("draft", asked.draft, drafts)
    if asked.verifier is not None and asked.verifier not in verifiers:
        raise unknown("verifier", asked.verifier, verifiers)
