"""Draft, verify, commit. Knows nothing about text, files, threads or which drafter it has.

Invariant between steps: a decoding sequence's KV has read all its tokens but the last (the root). There is no speculative
mode: plain decoding is the empty draft, and a prompt chunk is a chain of input tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several
from contextlib import ExitStack, suppress
from dataclasses import replace

from forerun.core.draft import EMPTY, ROOT, Draft
from forerun.core.model import Floats, ForwardInput, ForwardOutput, Model, Needs
from forerun.core.noise import Noise
from forerun.core.prefix_cache import PrefixCache
from forerun.core.protocols import Controller, Rng, Verifier
from forerun.core.request import FinishReason, Request
from forerun.core.rng import StepRng
from forerun.core.scratch import Scratch
from forerun.core.step import Seconds, StepResult
from forerun.core.transcript import Constraint
from forerun.engine.checks import check
from forerun.engine.scheduler import Scheduler, Turn
from forerun.engine.sequence import Sequence, Watcher
from forerun.engine.speculator import Method, Speculator
from forerun.engine.target_view import TargetView
from forerun.errors import BackendError


class Engine:
    """Runs sequences to their end, a step at a time.

    methods, verifiers: what requests may choose by name; the first of each is the default. No methods: plain decoding.
    max_sequences: sequences live at once. prefill_rows: prompt tokens read in one pass, over all sequences; shared_rows:
        the same where others decode in it (default: as many).
    keep_prefixes: ended texts whose KV is kept for requests that start the same (batch-invariant targets only).
    rng, noise: make a step's and a request's randomness; for tests.
    """

    def __init__(
        self,
        target: Model,
        methods: Mapping[str, Method],
        verifiers: Several[Verifier],
        controller: Controller,
        *,
        max_sequences: int = 8,
        prefill_rows: int = 256,
        shared_rows: int | None = None,
        keep_prefixes: int = 0,
        rng: Callable[[Sequence], Rng] | None = None,
        noise: Callable[[Request], Noise] | None = None,
    ) -> None:
        self.target = target
        self.verifiers = {verifier.name: verifier for verifier in verifiers}
        self.speculator = Speculator(methods, controller, target.info)
        self.prefixes = PrefixCache(keep_prefixes, target.info)
        self.scheduler = Scheduler(
            target,
            self.prefixes,
            max_sequences=max_sequences,
            prefill_rows=prefill_rows,
            shared_rows=prefill_rows if shared_rows is None else shared_rows,
            wants_hidden=bool(self.speculator.needs.hidden),
        )
        self._rng = rng or (lambda sequence: StepRng(sequence.noise, len(sequence.tokens)))
        self._noise = noise or (lambda request: Noise(request.seed))
        self._scratch = Scratch()
        # A sequence that memory has no room for ends at its context's end, as any other.
        room = target.room()
        self.context = min(target.info.context, room.total * room.page)
        # Whether a step was begun and not brought to its end; how many tokens of each sequence the caller knew before it, and
        # which sequences ended in it.
        self._suspect = False
        self._known: dict[Sequence, int] = {}
        self._ending: list[Sequence] = []

    @property
    def idle(self) -> bool:
        return not (self.scheduler.live or self.scheduler.waiting or self._suspect)

    def check(self, request: Request) -> None:
        """Raise PromptError or UsageError for a request that can never run."""
        check(request, self.target.info, self.context, self.speculator.methods, self.verifiers)

    def add(self, request: Request, watcher: Watcher | None = None, constraint: Constraint | None = None) -> Sequence:
        """Queue a request. watcher: sees its tokens; constraint: what may follow. Raises what `check` raises."""
        self.check(request)
        asked = request.speculation
        verifier = self.verifiers[asked.verifier or next(iter(self.verifiers))]
        method = asked.draft or next(iter(self.speculator.methods), "")
        sequence = Sequence(
            request,
            verifier,
            method=method if asked.enabled else "",
            watcher=watcher,
            constraint=constraint,
            noise=self._noise(request),
        )
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> list[StepResult]:
        """One step of all live sequences: draft, verify, commit. Sequences that end are released.

        After an exception (Ctrl-C, out of memory) nothing of the step is trusted but the tokens that were committed: the
        next call rebuilds the rest from them and reports what was written and not yet reported.
        """
        if self._suspect:
            results = self._recover()
            self._suspect = False
            if results:
                return results
        # The caller has taken the results of the step before.
        known = {one: one.generated for one in (*self.scheduler.live, *self.scheduler.waiting)}
        self._known, self._ending, self._suspect = known, [], True
        turns, set_back = self.scheduler.schedule()
        for sequence in set_back:
            self.speculator.release(sequence)
        results = self._run(turns) if turns else []
        for result in results:
            self._keep_prompt(result)
        self._end([result.sequence for result in results if isinstance(result.sequence, Sequence)])
        self._suspect = False
        return results

    def abort(self, sequence: Sequence, reason: FinishReason = "abort") -> None:
        """End a sequence now and release what it holds. Harmless when it has ended."""
        if not sequence.finished:
            sequence.finish_reason = reason
        if sequence in self.scheduler.live or sequence in self.scheduler.waiting:
            suspect, self._suspect = self._suspect, True
            self._close(sequence, trusted=not suspect)
            self._suspect = suspect

    def close(self) -> None:
        """Abort everything and release target and drafters."""
        for sequence in [*self.scheduler.live, *self.scheduler.waiting]:
            self.abort(sequence)
        self.prefixes.clear()
        self.speculator.close()
        self.target.close()

    def _run(self, turns: Several[Turn]) -> list[StepResult]:
        """One pass; where the target cannot make it, again with less of everything, until what fails does so alone."""
        started = time.perf_counter()
        drafts = self.speculator.draft(turns)
        seconds = time.perf_counter() - started
        try:
            return self._pass(turns, drafts, seconds)
        except _RefusedError:
            # Whatever was done for speed is given up first: it must not end what plain decoding would write.
            self.prefixes.clear()
            for turn in turns:
                self.speculator.release(turn.sequence)
        plain, set_back = self.scheduler.schedule()
        for sequence in set_back:
            self.speculator.release(sequence)
        try:
            return self._pass(plain, [EMPTY] * len(plain), seconds)
        except _RefusedError:
            return [result for turn in plain for result in self._alone(turn)]

    def _alone(self, turn: Turn) -> list[StepResult]:
        """A pass of one sequence, which ends with the error where it fails."""
        try:
            return self._pass([turn], [EMPTY], 0.0)
        except _RefusedError as refused:
            turn.sequence.fail(refused.error)
            return [StepResult(turn.sequence, decoded=False)]

    def _pass(self, turns: Several[Turn], drafts: Several[Draft], drafting: float) -> list[StepResult]:
        """One pass of the target, verified and committed. Raises _RefusedError, with nothing done, where it cannot be made."""
        started = time.perf_counter()
        inputs = [_input(turn, draft) for turn, draft in zip(turns, drafts, strict=True)]
        needs = self.speculator.needs
        if any(turn.sequence.scores_prompt for turn in turns):
            needs = replace(needs, every_row=True)
        with ExitStack() as stack:
            try:
                output = stack.enter_context(self.target.forward(inputs, needs))
            except BackendError as error:
                raise _RefusedError(error) from error
            results = [self._verified(turn, inputs[i], output, i, needs) for i, turn in enumerate(turns)]
            verified = time.perf_counter()
            seconds = Seconds(drafting, verified - started)
            results = [replace(result, seconds=seconds) for result in results]
            self.speculator.learn(results)
        seconds = replace(seconds, other=time.perf_counter() - verified)
        results = [replace(result, rows=None, hidden={}, seconds=seconds) for result in results]
        for result in results:
            assert isinstance(result.sequence, Sequence)
            result.sequence.stats.add(result)
        return results

    def _verified(self, turn: Turn, given: ForwardInput, output: ForwardOutput, index: int, needs: Needs) -> StepResult:
        """Verify one input and commit what it earned. A sequence that fails here ends alone, uncommitted."""
        sequence, draft, usable = turn.sequence, given.draft, self.target.info.usable_vocab
        if sequence.scores_prompt:
            sequence.score(output.logits(index)[: len(turn.input_tokens)], usable)
        hidden = {layer: output.hidden(index, layer) for layer in needs.hidden}
        if not turn.decodes:
            output.commit(index, ())
            _keep_hidden(sequence, hidden, len(turn.input_tokens) + ROOT)
            return StepResult(sequence, turn.input_tokens, decoded=False, hidden=hidden)
        rows = output.logits(index)[len(turn.input_tokens) - 1 if needs.every_row else 0 :]
        self._scratch.rewind()
        view = TargetView(sequence, draft, rows, usable, self._scratch, output=output, index=index)
        written = sequence.generated
        try:
            verdict = sequence.verifier.verify(draft, view, self._rng(sequence))
            kept = sequence.commit(draft, verdict, view.logprobs, self.context)
        except Exception as error:
            return self._failed(sequence, turn.input_tokens, written, error)
        path = verdict.path[: len(kept)]
        # The last token is the root, which KV has not read; a drafted one that ended the text need not be kept.
        read = path if len(kept) > len(path) else path[:-1]
        output.commit(index, read)
        _keep_hidden(sequence, hidden, len(turn.input_tokens) + (read[-1] if read else ROOT))
        logprobs = tuple(sequence.logprobs[len(sequence.logprobs) - len(kept) :])
        return StepResult(sequence, turn.input_tokens, draft, path, kept, True, logprobs, rows, hidden, verdict=verdict)

    def _keep_prompt(self, result: StepResult) -> None:
        """Once a prompt was read, others that start the same need not read it again."""
        sequence = result.sequence
        assert isinstance(sequence, Sequence)
        if not (self.prefixes.keeps and result.tokens and sequence.generated == len(result.tokens)):
            return
        if sequence.kv is not None and not sequence.finished:
            read = sequence.tokens[: sequence.kv.length]
            with suppress(BackendError):  # no memory for a copy
                self.prefixes.put(read, sequence.kv.fork(), sequence.request.memory, sequence.hidden)

    def _failed(self, sequence: Sequence, input_tokens: tuple[int, ...], before: int, error: Exception) -> StepResult:
        """The result of a step in which a sequence failed, with the tokens that it had written by then."""
        sequence.fail(error)
        sequence.recover(self.context)
        tokens, logprobs = tuple(sequence.output[before:]), tuple(sequence.logprobs[before:])
        return StepResult(sequence, input_tokens, tokens=tokens, decoded=bool(tokens), logprobs=logprobs)

    def _end(self, sequences: Several[Sequence]) -> None:
        """Release those that have ended."""
        ended = [sequence for sequence in sequences if sequence.finished]
        self._ending = list(dict.fromkeys([*self._ending, *ended]))
        for sequence in ended:
            self._close(sequence)

    def _close(self, sequence: Sequence, *, trusted: bool = True) -> None:
        """Release what a sequence holds. trusted: whether others may go on from its memory."""
        self.scheduler.remove(sequence)
        kv, sequence.kv = sequence.kv, None
        if trusted and sequence.error is None:
            self.speculator.finish(sequence)
            if kv is not None:
                self.prefixes.put(sequence.tokens[: kv.length], kv, sequence.request.memory, sequence.hidden)
            return
        self.speculator.release(sequence)
        self.speculator.controller.forget(sequence)
        if kv is not None:
            kv.close()

    def _recover(self) -> list[StepResult]:
        """After a step that was cut short: rebuild every sequence from its tokens, and report what was not reported."""
        self.scheduler.recover()
        self.prefixes.clear()
        live = self.scheduler.live
        results = []
        for sequence in dict.fromkeys([*live, *self.scheduler.waiting, *self._ending]):
            self.scheduler.release(sequence)
            self.speculator.release(sequence)
            if sequence not in self._ending:
                sequence.recover(self.context)
            known = self._known.get(sequence, 0)
            written = tuple(sequence.output[known:])
            if written or sequence.finished:
                logprobs = tuple(sequence.logprobs[known:])
                results.append(StepResult(sequence, tokens=written, logprobs=logprobs, decoded=bool(written)))
        self._end([sequence for sequence in live if sequence.finished])
        return results


class _RefusedError(Exception):
    """The target cannot make a pass. Nothing was read or committed."""

    def __init__(self, error: BackendError) -> None:
        super().__init__(str(error))
        self.error = error


def _input(turn: Turn, draft: Draft) -> ForwardInput:
    assert turn.sequence.kv is not None, "a live sequence has a KV"
    return ForwardInput(turn.sequence.kv, turn.input_tokens, draft, logits=turn.decodes)


def _keep_hidden(sequence: Sequence, hidden: Mapping[int, Floats], row: int) -> None:
    """Keep the hidden states of the last token that the KV has read: row `row` of the pass."""
    sequence.hidden = {layer: states[row].copy() for layer, states in hidden.items()}
