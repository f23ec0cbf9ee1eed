"""The run of one request: its text, its memory in the target, its rule, its counters, and how it ended."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Protocol

from forerun.core import choosing
from forerun.core.choosing import TokenLogprob
from forerun.core.draft import ROOT, Draft
from forerun.core.model import KV, Floats
from forerun.core.noise import Noise
from forerun.core.prefix_cache import Hidden
from forerun.core.protocols import Verifier
from forerun.core.request import FinishReason, Request
from forerun.core.stats import Stats
from forerun.core.step import Verdict
from forerun.core.transcript import Constraint, Transcript


class Watcher(Protocol):
    """Sees each committed token once, in order. Text, stop strings and whatever else ends a text early live here."""

    def push(self, token: int) -> bool:
        """True ends the text with this token (finish reason `stop`)."""
        ...

    def replay(self, tokens: list[int]) -> int | None:
        """Start anew with these tokens; which of them ends the text, None if none does."""
        ...


class Sequence(Transcript):
    """Everything that belongs to one request while it runs.

    verifier: its acceptance rule. method: the name of what drafts for it, empty where nothing does.
    kv: the target's, None before it was admitted and after it was set back. cached: tokens of the prompt that a kept prefix
        had already read. hidden: what is known of the hidden states at the end of such a prefix.
    offered: nodes that drafters have proposed for it, verified or not.
    prompt_logprobs: of the prompt's tokens from the second on, where the request asked for them.
    """

    _numbers = itertools.count()

    def __init__(
        self,
        request: Request,
        verifier: Verifier,
        *,
        method: str = "",
        watcher: Watcher | None = None,
        constraint: Constraint | None = None,
        noise: Noise | None = None,
    ) -> None:
        super().__init__(request, keyed=verifier.keyed, noise=noise, constraint=constraint)
        self.number = next(self._numbers)
        self.verifier = verifier
        self.method = method
        self.kv: KV | None = None
        self.cached = 0
        self.hidden: Hidden = {}
        self.stats = Stats()
        self.logprobs: list[TokenLogprob] = []
        self.prompt_logprobs: list[TokenLogprob] = []
        self.offered = 0
        self.finish_reason: FinishReason | None = None
        self.error: Exception | None = None
        self._watcher = watcher

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def read(self) -> int:
        """How many tokens the target's KV has read."""
        return 0 if self.kv is None else self.kv.length

    @property
    def scores_prompt(self) -> bool:
        """Whether a pass over its prompt must give log-probabilities of it."""
        asked = self.request.prompt_logprobs is not None
        return asked and len(self.prompt_logprobs) < len(self.request.prompt) - 1

    @property
    def unread(self) -> int:
        """Tokens that the target has yet to read; one, the root, while it decodes."""
        return len(self.tokens) - self.read

    def commit(
        self, draft: Draft, verdict: Verdict, logprobs: Callable[[int, int, int], TokenLogprob], context: int
    ) -> tuple[int, ...]:
        """Commit a verdict's tokens one by one, up to the one that ends the text; those that were.

        logprobs: of (node, token after it, how many alternatives).
        """
        wanted = self.request.sampling.logprobs
        node = ROOT
        kept: list[int] = []
        for following, token in [*((n, draft.tokens[n]) for n in verdict.path), (ROOT, verdict.bonus)]:
            if wanted is not None:
                self.logprobs.append(logprobs(node, token, wanted))
            kept.append(token)
            node = following
            if self.append(token, context):
                break
        return tuple(kept)

    def append(self, token: int, context: int) -> bool:
        """Commit one token; true when the text ended with it. `context` is the most tokens the model can hold."""
        self.add(token)
        stopped = self._watcher.push(token) if self._watcher is not None else False
        if token in self.request.stop_ids or stopped:
            self.finish_reason = "stop"
        elif self.remaining == 0 or len(self.tokens) >= context:
            self.finish_reason = "length"
        return self.finished

    def score(self, rows: Floats, usable: int) -> None:
        """Note what `rows` `[tokens, vocab]`, one after each token that a pass reads now, say of the prompt's next ones."""
        prompt, wanted = self.request.prompt, self.request.prompt_logprobs
        for following, row in enumerate(rows, start=self.read + 1):
            # What was set back to wait is read again, and was noted before.
            if wanted is not None and following == len(self.prompt_logprobs) + 1 and following < len(prompt):
                self.prompt_logprobs.append(choosing.logprobs(row, prompt[following], wanted, usable))

    def fail(self, error: Exception) -> None:
        """End the text with an error; what was written stays."""
        self.error, self.finish_reason = error, "error"

    def recover(self, context: int) -> None:
        """Rebuild it; memory may be short for a moment, and where it fails again the text ends with the error."""
        try:
            self.rebuild(context)
        except Exception:
            try:
                self.rebuild(context)
            except Exception as error:
                self.fail(self.error or error)

    def rebuild(self, context: int) -> None:
        """Make everything anew that follows from the tokens, after a step was cut short at an unknown place.

        Tokens whose log-probabilities are missing are given up; the next steps write them again.
        """
        prompt, end = len(self.request.prompt), len(self.tokens)
        if self.request.sampling.logprobs is not None:
            end = min(end, prompt + len(self.logprobs))
        self.recount(end)
        del self.logprobs[self.generated :]
        stopped = self._watcher is not None and self._watcher.replay(self.output) is not None
        if self.error is not None or self.finish_reason == "abort":
            return
        if stopped or self.request.stop_ids.intersection(self.output):
            self.finish_reason = "stop"
        elif self.remaining == 0 or len(self.tokens) >= context:
            self.finish_reason = "length"
        else:
            self.finish_reason = None
