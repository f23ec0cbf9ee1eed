"""What was asked: a prompt, how to choose tokens, when to stop, how to draft. Plain and frozen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from forerun.core.sampling import Sampling
from forerun.errors import UsageError, quoted

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class Speculation:
    """How one request is drafted for and verified, among what the engine was built with. Raises UsageError.

    enabled: False decodes plainly. draft, verifier: names; None is the engine's default.
    num_speculative_tokens: nodes drafted in each step, as far as there are any; None leaves it to the controller.
    """

    enabled: bool = True
    draft: str | None = None
    verifier: str | None = None
    num_speculative_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("draft", "verifier"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise UsageError(f"{name} is {quoted(value)}; it must be a name.")
        nodes = self.num_speculative_tokens
        if nodes is not None and (isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 0):
            raise UsageError(f"num_speculative_tokens is {quoted(nodes)}; it must be a whole number, at least 0.")


@dataclass(frozen=True)
class Request:
    """One text to write.

    prompt: token ids, at least one. seed: the resolved one. stop_ids: ids that end the text (finish reason `stop`).
    memory: name of the drafters' memory of earlier requests that this one reads and adds to; memories of different names
        never see each other.
    prediction: token ids that the caller expects as the output, or as parts of it; for the drafter of that name.
    prompt_logprobs: None is off, N gives the log-probability of each token of the prompt but the first, with the N most
        likely alternatives. Such a prompt is read whole.
    id: what the caller calls it.
    """

    prompt: Sequence[int]
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    stop_ids: frozenset[int] = frozenset()
    memory: str = ""
    prediction: Sequence[int] = ()
    prompt_logprobs: int | None = None
    speculation: Speculation = Speculation()
    id: str = ""

    def __post_init__(self) -> None:
        # A caller's list may change later; what was asked does not.
        object.__setattr__(self, "prompt", tuple(self.prompt))
        object.__setattr__(self, "prediction", tuple(self.prediction))
