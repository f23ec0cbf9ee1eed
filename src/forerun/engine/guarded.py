"""A drafter whose failures end nothing: it cannot change the text, so an error in it costs its drafts and nothing else.

It also keeps the drafter's sessions, one for each text that it was asked about, opened when it is first asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import replace
from operator import index
from typing import TypeVar

from forerun.core.draft import EMPTY, Draft
from forerun.core.model import ModelInfo
from forerun.core.protocols import Drafter, DraftRequest, DraftSession
from forerun.core.step import StepResult
from forerun.engine.sequence import Sequence
from forerun.errors import BackendError

_log = logging.getLogger("forerun")
T = TypeVar("T")

# What a drafter may raise without being to blame for it.
_OURS = (KeyboardInterrupt, MemoryError, GeneratorExit)


class GuardedDrafter:
    """A drafter that never raises. info: of the target, which drafts must fit.

    A failure of its model (BackendError: out of memory, past its context) silences it for the text concerned; any other
    failure drops it for good. Both are said once, in the log.
    """

    def __init__(self, drafter: Drafter, info: ModelInfo) -> None:
        self.drafter = drafter
        # What made it fail, once something did; it is not asked again.
        self.failure: BaseException | None = None
        self._info = info
        self._sessions: dict[int, DraftSession] = {}
        self._silent: set[int] = set()
        self._warned = False

    def session(self, sequence: Sequence) -> DraftSession | None:
        """A text's session, opened when it is first asked for; None where this drafter does not draft for the text."""
        if self.failure is not None or sequence.number in self._silent:
            return None
        if sequence.number not in self._sessions:
            opened = self._guarded(lambda: self.drafter.open(sequence), sequence)
            if opened is None:
                return None
            self._sessions[sequence.number] = opened
        return self._sessions[sequence.number]

    def unread(self, sequence: Sequence) -> int | None:
        """Tokens of a text that a model must read before it can draft; None where this drafter does not draft for it."""
        session = self.session(sequence)
        return None if session is None else self._guarded(lambda: int(session.unread), sequence)

    def propose(self, sequences: Several[Sequence], requests: Several[DraftRequest]) -> list[Draft]:
        """One draft for each text. Where the drafter's model fails for several, each is tried alone."""
        try:
            drafts = self.drafter.propose(requests)
            return [self._fitted(draft, request.nodes) for draft, request in zip(drafts, requests, strict=True)]
        except _OURS:
            raise
        except BackendError as error:
            if len(sequences) > 1:
                return [self._alone(one, asked) for one, asked in zip(sequences, requests, strict=True)]
            self._silence(sequences[0], error)
        except BaseException as error:
            self._drop(error)
        return [EMPTY] * len(sequences)

    def _alone(self, sequence: Sequence, asked: DraftRequest) -> Draft:
        """A draft after one that failed for several texts: what it left of their sessions is not known, so they begin anew."""
        self.release(sequence)
        session = self.session(sequence)
        return EMPTY if session is None else self.propose([sequence], [replace(asked, session=session)])[0]

    def observe(self, result: StepResult) -> None:
        """Let the text's session learn a step."""
        assert isinstance(result.sequence, Sequence)
        session = self._sessions.get(result.sequence.number)
        if session is not None:
            self._guarded(lambda: session.observe(result), result.sequence)

    def finish(self, sequence: Sequence) -> None:
        """The text has ended: its session keeps what later texts may draft from."""
        session = self._sessions.get(sequence.number)
        if session is not None:
            self._guarded(session.finish, sequence)
        self.release(sequence)
        self._silent.discard(sequence.number)

    def release(self, sequence: Sequence) -> None:
        """Give up the text's session; a new one is opened when the text is asked about again."""
        session = self._sessions.pop(sequence.number, None)
        if session is not None:
            self._guarded(session.close, sequence)

    def close(self) -> None:
        """Release the drafter, also one that failed: it may hold a model."""
        self._sessions.clear()
        try:
            self.drafter.close()
        except _OURS:
            raise
        except BaseException as error:
            if self.failure is None:
                self._drop(error)

    def _fitted(self, draft: Draft, nodes: int) -> Draft:
        """The part of a draft that can be verified at all: ids that are tokens, and no more nodes than were asked for.

        Raises TypeError or ValueError for what is no draft for this target.
        """
        if any(type(token) is not int for token in draft.tokens):
            draft = replace(draft, tokens=tuple(index(token) for token in draft.tokens))  # numpy's integers are fine
        for q in draft.q or ():
            if q is not None and q.shape != (self._info.vocab_size,):
                raise ValueError(f"q has the shape {q.shape}, not one entry for each of {self._info.vocab_size} ids")
        possible = [self._is_possible(draft, node) for node in range(len(draft))]
        if not all(possible):
            kept: list[int] = []
            for node, parent in enumerate(draft.parents):
                if possible[node] and (parent < 0 or parent in kept):
                    kept.append(node)
            draft = draft.keep(kept)
        return draft.fit(nodes=nodes, depth=nodes, tree=self._info.tree)

    def _is_possible(self, draft: Draft, node: int) -> bool:
        """Whether a node's id is a token. Of a drawn one, whether all that might have been drawn are: to drop it for the one
        that was would be to drop it by its value (see controllers.trimming)."""
        usable = self._info.usable_vocab
        q = None if draft.q is None else draft.q[node]
        return 0 <= draft.tokens[node] < usable and not (q is not None and q[usable:].any())

    def _guarded(self, call: Callable[[], T], sequence: Sequence | None = None) -> T | None:
        """Call the drafter; None where it fails."""
        if self.failure is not None:
            return None
        try:
            return call()
        except _OURS:
            raise
        except BackendError as error:
            if sequence is None:
                self._drop(error)
            else:
                self._silence(sequence, error)
        except BaseException as error:
            self._drop(error)
        return None

    def _silence(self, sequence: Sequence, error: BackendError) -> None:
        self._silent.add(sequence.number)
        self.release(sequence)
        if not self._warned:
            self._warned = True
            _log.warning("the drafter %s says nothing for a text that goes on without it: %s", self.drafter.name, error)

    def _drop(self, error: BaseException) -> None:
        _log.debug("a drafter failed", exc_info=error)
        # What its frames hold, such as keys and values, is not to be held on to.
        self.failure = error.with_traceback(None)
        self._sessions.clear()
        what = " ".join(f"{type(error).__name__}: {error}".split())
        _log.warning(
            "the drafter %s failed (%s) and is not asked again; the text is the same without it.",
            getattr(self.drafter, "name", type(self.drafter).__name__),
            what,
        )
