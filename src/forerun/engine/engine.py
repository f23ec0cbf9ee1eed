"""Draft, verify, commit. Knows nothing about text, files, threads or which drafter it has.

Invariant between rounds: a decoding request's KV has read all its tokens but the last (the root). There is no
speculative mode: plain decoding is the empty draft, and a prompt chunk is a chain of input_tokens tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from forerun.core import sampling
from forerun.core.draft import EMPTY, ROOT, Draft
from forerun.core.prefixes import Prefixes
from forerun.core.protocols import KV, Answers, Controller, Drafter, ForwardInput, ForwardOutput, Model, Rng, Verifier
from forerun.core.request import FinishReason, Request
from forerun.core.rng import StepRng
from forerun.core.scratch import Scratch
from forerun.core.step import Seconds, StepResult, Verdict
from forerun.engine.scheduler import Scheduler, Turn
from forerun.errors import BackendError, PromptError


class Engine:
    """Runs requests to their end, a round at a time.

    max_sequences: requests live at once. prefill_rows: prompt tokens read in one pass, over all requests.
    keep_prefixes: ended texts whose KV is kept for requests that start the same (batch-invariant targets only).
    rng: makes a round's randomness for rules that need it, from the request and the length of its text.
    """

    def __init__(
        self,
        target: Model,
        drafter: Drafter,
        verifier: Verifier,
        controller: Controller,
        *,
        max_sequences: int = 8,
        prefill_rows: int = 256,
        keep_prefixes: int = 0,
        rng: Callable[[Request, int], Rng] | None = None,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.verifier = verifier
        self.controller = controller
        self._chance = rng or (lambda request, root: StepRng(request.noise, root))
        self._scheduler = Scheduler(max_sequences, prefill_rows)
        self._scratch = Scratch()
        self._prefixes = Prefixes(keep_prefixes, target.info)

    @property
    def idle(self) -> bool:
        return not (self._scheduler.live or self._scheduler.waiting)

    def check(self, request: Request) -> None:
        """Raise PromptError when a request's prompt is empty or leaves no room for an answer."""
        info = self.target.info
        if not request.prompt:
            raise PromptError("the prompt is empty; give at least one token of text.")
        if len(request.prompt) >= info.context:
            raise PromptError(
                f"the prompt has {len(request.prompt)} tokens, but {info.name} holds {info.context} and needs room for "
                "an answer; shorten the prompt."
            )

    def add(self, request: Request) -> None:
        """Queue a request. Raises PromptError (see `check`)."""
        self.check(request)
        request.shares_noise = self.verifier.shares_noise
        request.wants_beliefs = self.verifier.wants_beliefs
        self._scheduler.add(request)

    def step(self) -> list[StepResult]:
        """One round of all live requests. Requests that end are released; ask `request.finish_reason`.

        An exception (Ctrl-C, out of memory) rolls back what the pass had not committed; the next round reads the rest
        of each request's tokens again, whatever was lost.
        """
        for request in self._scheduler.admit():
            request.kv = self._prefixes.take(request.prompt) or self.target.open()
            request.session = self.drafter.open(request)
        turns = self._scheduler.plan()
        if not turns:
            return []
        started = time.perf_counter()
        drafts = self._draft(turns)
        drafted = time.perf_counter()
        inputs = [
            ForwardInput(_kv(turn.request), turn.input_tokens, draft, logits=turn.decodes)
            for turn, draft in zip(turns, drafts, strict=True)
        ]
        with self.target.forward(inputs, self.drafter.needs) as output:
            settled = [self._settle(t, f, output, i) for i, (t, f) in enumerate(zip(turns, inputs, strict=True))]
            results = [result for result in settled if result is not None]
            verified = time.perf_counter()
            # Sessions look at rows of the pass, so they learn before it is left.
            for result in results:
                if result.request.session is not None:
                    result.request.session.observe(result)
        seconds = Seconds(drafted - started, verified - drafted, time.perf_counter() - verified)
        results = [replace(result, rows=None, hidden={}, seconds=seconds) for result in results]
        for result in results:
            result.request.stats.add(result)
        self.controller.observe(results)
        for turn in turns:
            if turn.request.finished:
                self._close(turn.request)
        return results

    def abort(self, request: Request, reason: FinishReason = "abort") -> None:
        """End a request now and release what it holds. Harmless when it has ended."""
        if not request.finished:
            request.finish_reason = reason
        self._close(request)

    def close(self) -> None:
        """Abort everything and release target and drafter."""
        for request in [*self._scheduler.live, *self._scheduler.waiting]:
            self.abort(request)
        self._prefixes.clear()
        self.drafter.close()
        self.target.close()

    def _draft(self, turns: Sequence[Turn]) -> list[Draft]:
        """One draft per turn; a turn that ends inside a prompt drafts nothing."""
        live = [turn.request for turn in turns if turn.decodes]
        budgets = self.controller.budgets(live)
        if not any(budgets):
            return [EMPTY] * len(turns)
        started = time.perf_counter()
        sessions = [request.session for request in live if request.session is not None]
        proposed = self.drafter.propose(sessions, budgets)
        fitted = [self._fit(*given) for given in zip(live, proposed, budgets, strict=True)]
        kept = self.controller.trim(live, fitted, time.perf_counter() - started)
        drafts = dict(zip(map(id, live), kept, strict=True))
        return [drafts.get(id(turn.request), EMPTY) for turn in turns]

    def _fit(self, request: Request, draft: Draft, budget: int) -> Draft:
        """Never draft past the context or the request's last token: the bonus takes one place."""
        info = self.target.info
        room = info.context - len(request.tokens)
        depth = room if request.remaining is None else min(room, request.remaining - 1)
        if not info.rollback:
            return EMPTY
        return draft.fit(nodes=min(budget, room), depth=depth, tree=info.tree)

    def _settle(self, turn: Turn, feed: ForwardInput, output: ForwardOutput, index: int) -> StepResult | None:
        """Verify one feed and commit what it earned. A request whose logits are broken ends alone, uncommitted."""
        request, draft = turn.request, feed.draft
        hidden = {layer: output.hidden(index, layer) for layer in self.drafter.needs.hidden}
        if not turn.decodes:
            output.commit(index, ())
            return StepResult(request, turn.input_tokens, decoded=False, hidden=hidden)
        rows = output.logits(index)
        try:
            self._scratch.rewind()
            view = TargetView(request, draft, rows, self.target.info.usable_vocab, self._scratch)
            verdict = self.verifier.verify(draft, view, self._chance(request, len(request.tokens)))
        except BackendError as error:
            request.error, request.finish_reason = error, "error"
            return None
        if isinstance(output, Answers):
            unasked = tuple(output.unasked(index, 1 + node) for node in (ROOT, *verdict.path))
            verdict = replace(verdict, unasked=unasked)
        kept = self._append(request, draft, verdict, rows)
        path = verdict.path[: len(kept)]
        # The last token is the root, which KV has not read; a drafted one that ended the request need not be kept.
        output.commit(index, path if len(kept) > len(path) else path[:-1])
        return StepResult(request, turn.input_tokens, draft, path, kept, rows=rows, hidden=hidden, verdict=verdict)

    def _append(self, request: Request, draft: Draft, verdict: Verdict, rows: NDArray[np.float32]) -> tuple[int, ...]:
        """Commit the verdict's tokens one by one, up to the one that ends the request."""
        info = self.target.info
        row = 0
        kept: list[int] = []
        for node, token in [*((n, draft.tokens[n]) for n in verdict.path), (ROOT, verdict.bonus)]:
            if request.sampling.logprobs is not None:
                request.logprobs.append(
                    sampling.logprobs(rows[row], token, request.sampling.logprobs, info.usable_vocab)
                )
            kept.append(token)
            row = 1 + node
            if request.append(token, info.context):
                break
        return tuple(kept)

    def _close(self, request: Request) -> None:
        self._scheduler.remove(request)
        self.controller.forget(request)
        if request.session is not None:
            request.session.close()
        if request.kv is not None:
            if request.error is None:
                self._prefixes.put(request.tokens[: request.kv.length], request.kv)
            else:
                request.kv.close()
        request.session = request.kv = None


class TargetView:
    """What a verifier sees of the target at each node (core.protocols.Target): the one `choose`, at the true prefix."""

    def __init__(
        self, request: Request, draft: Draft, rows: NDArray[np.float32], usable: int, scratch: Scratch | None = None
    ) -> None:
        self._request = request
        self._draft = draft
        self._rows = rows
        self._usable = usable
        self._scratch = scratch or Scratch()
        self._laws: dict[int, NDArray[np.float64]] = {}
        self._beliefs: dict[int, NDArray[np.float64]] = {}

    def law(self, node: int) -> NDArray[np.float64]:
        if node not in self._laws:
            self._laws[node] = self._made(sampling.law, node)
        return self._laws[node]

    def belief(self, node: int) -> NDArray[np.float64]:
        if node not in self._beliefs:
            own = self._request.sampling
            as_sampled = own.temperature == 1.0 and not own.truncates
            self._beliefs[node] = self.law(node) if as_sampled else self._made(sampling.belief, node)
        return self._beliefs[node]

    def _made(self, make: Callable[..., NDArray[np.float64]], node: int) -> NDArray[np.float64]:
        row = self._rows[1 + node]
        return make(row, self._prefix(node), self._request.sampling, self._usable, out=self._scratch.array(len(row)))

    def choose(self, node: int) -> int:
        request = self._request
        return sampling.choose(
            self._rows[1 + node], self._prefix(node), request.sampling, self._usable, request.token_stream
        )

    def _prefix(self, node: int) -> sampling.Prefix:
        return self._request.prefix([self._draft.tokens[n] for n in self._draft.path_to(node)])


def _kv(request: Request) -> KV:
    assert request.kv is not None, "a live request has a KV"
    return request.kv
