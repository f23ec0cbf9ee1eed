"""A language model as a drafter: a chain or a small tree per round, grown best-first (Leviathan et al. 2211.17192).

It draws with the request's own sampling parameters. Under a rule that shares noise it draws with the target's noise at
the same positions, so it proposes what the target would say if the two models agreed (2408.07978); otherwise each
node's q is the law that it was really drawn from, and siblings are drawn without replacement by the same race.

Its KV follows the commits without being told of them: it knows which tokens the KV has read, cuts it back to what they
share with the text that is wanted now, and reads the rest. Each pass hangs the tree off the deepest node that all the
nodes to be continued share, so a chain costs one row a pass. There are as many passes as the tree has levels.

A helper (`m<a`, a chain of stages: staged speculation 2308.04623, CS-Drafting 2312.11462) drafts for this model in turn:
each pass also reads what the helper says after the likeliest node, and where the model's own draw agrees, the next
level needs no pass. The draws are keyed, so the draft is the same as without a helper, in fewer passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from forerun.core.draft import EMPTY, Draft
from forerun.core.prefixes import Prefixes
from forerun.core.protocols import (
    KV,
    NOTHING,
    Borrower,
    Drafter,
    DraftSession,
    Floats,
    ForwardInput,
    Model,
    ModelInfo,
    Needs,
)
from forerun.core.request import Request
from forerun.core.step import StepResult
from forerun.drafters.base import Continues, Session, SessionDrafter, unread
from forerun.drafters.bridge import Reading, SameIds, Shared, Translation
from forerun.drafters.head import Head, Widened
from forerun.drafters.model_tree import Plan


class ModelSession(Session):
    """A draft model's KV of one request, and which tokens it has read."""

    def __init__(self, drafter: ModelDrafter, request: Request) -> None:
        super().__init__(request)
        self.drafter = drafter
        self.reading = drafter.reading(request)
        self.widened = Widened(drafter.head, request) if drafter.head is not None else None
        # Some readings have to translate a whole text first.
        kept = drafter.prefixes.take(self.reading.tokens) if len(drafter.prefixes) else None
        self._kv = kept or drafter.model.open()
        self.helper = drafter.helper.open(request) if drafter.helper is not None else None
        self._borrowed = 0  # how many tokens the target's KV had read when it was borrowed
        self._read = list(self.reading.tokens[: self._kv.length])
        self._agreed = len(self._read)  # how many of them are known to be the text's: its tokens never change
        self._closed = False

    def propose_after(self, path: Sequence[int], budget: int) -> Draft:
        return self.drafter.propose_after([self], [path], [budget])[0]

    @property
    def unread(self) -> int:
        """Tokens of the text that the model, or one that drafts for it, has yet to read."""
        own = 0 if self.drafter.borrower is not None else max(0, len(self.reading.tokens) - len(self._read))
        return own + unread(self.helper)

    def tail(self, path: Sequence[int]) -> tuple[int, ...] | None:
        """What to read after `reading.tokens` for the request's text and `path`; None where the model cannot."""
        # In its first round the target may be reading the prompt: only then is there something to borrow.
        waits = self.drafter.borrower is not None and self.request.kv is not None and not self.request.generated
        return None if self._closed or waits else self.reading.tail(path)

    def seek(self, path: Sequence[int]) -> tuple[KV, tuple[int, ...]]:
        """Cut the KV to what it shares with the text and `path`; (KV, the tokens to read, at least one).

        path: in the model's ids, as all below.
        """
        tokens = self.reading.tokens
        self._borrow()
        del self._read[self._kv.length :]
        known, last = len(tokens), len(tokens) + len(path) - 1
        shared = min(self._agreed, len(self._read), last)
        while shared < min(len(self._read), last):
            if self._read[shared] != (tokens[shared] if shared < known else path[shared - known]):
                break
            shared += 1
        self._agreed = min(shared, known)
        if shared < len(self._read):
            self._kv.truncate(shared)
            del self._read[shared:]
        return self._kv, (*tokens[shared:], *path[max(0, shared - known) :])

    def _borrow(self) -> None:
        """Go on from the target's KV, where the model can read it and the target has read on."""
        lent, borrower = self.request.kv, self.drafter.borrower
        if borrower is None or lent is None or lent.length == self._borrowed:
            return
        own, self._kv = self._kv, borrower.borrow(lent)
        own.close()
        self._borrowed = self._agreed = lent.length
        self._read = list(self.reading.tokens[: lent.length])

    def read_to(self, path: Sequence[int]) -> None:
        """Note that the KV has now read the text and `path`."""
        self._read += [*self.reading.tokens, *path][len(self._read) :]

    def chunk(self, path: Sequence[int], size: int) -> ForwardInput | None:
        """A pass that reads `size` tokens of a long text; None when what is left fits the pass that drafts."""
        kv, input_tokens = self.seek(path)
        if len(input_tokens) <= size:
            return None
        self._read += input_tokens[:size]
        return ForwardInput(kv, input_tokens[:size], logits=False)

    def observe(self, result: StepResult) -> None:
        if self.helper is not None:
            self.helper.observe(result)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.drafter.prefixes.put(self._read[: self._kv.length], self._kv)
            if self.helper is not None:
                self.helper.close()


class Helper(Drafter, Continues, Protocol):
    """A drafter that can propose after tokens which are not committed yet."""


class ModelDrafter(SessionDrafter[ModelSession]):
    """Drafts with a smaller, older or more strongly quantized model of the target's vocabulary.

    target: what it drafts for. Padded vocabulary sizes may differ: ids that either side does not have are never
        proposed, and q has the target's width.
    width: siblings per node; 1 is a chain.
    threshold: a node whose estimated chance to be reached is below it is kept but not continued.
    depth: most levels of the tree, so most passes (0: the budget decides).
    chunk: most tokens of a text that one pass reads.
    keep_prefixes: ended texts whose KV is kept for requests that start the same.
    helper: drafts for this model, at most `helped` tokens a pass.
    head: for a model whose head covers some ids only (FR-Spec, 2502.14856), which; and how others are output.
    borrows: go on from the target's KV, which the model must be able to read (`Borrower`), and read no text of its own.
    shared: for a model of another vocabulary, what the two share: it reads the text in its own tokens and draws among the
        shared ones alone (TLI, 2502.05202).
    """

    def __init__(
        self,
        model: Model,
        target: ModelInfo,
        *,
        width: int = 1,
        threshold: float = 0.0,
        depth: int = 0,
        chunk: int = 256,
        keep_prefixes: int = 0,
        helper: Helper | None = None,
        helped: int = 4,
        head: Head | None = None,
        borrows: bool = False,
        shared: Shared | None = None,
        name: str = "",
    ) -> None:
        self.model = model
        self.name = (name or f"model:{model.info.name}") + ("" if helper is None else f"<{helper.name}")
        self.helper, self._helped = helper, helped
        self.prefixes = Prefixes(0 if borrows else keep_prefixes, model.info)
        # Who can go on from the target's KV, if it is to.
        self.borrower = cast(Borrower, model) if borrows else None
        self._shared = shared
        # Which of a model's rows are which of the target's ids, where they are not the same.
        self.head = head
        self._needs = Needs((-1,)) if head is not None and head.vectors is not None else NOTHING
        self._placed: tuple[slice | NDArray[Any], NDArray[Any]] | None = None
        if head is not None:
            known = head.ids < target.vocab_size
            self._placed = (slice(None) if known.all() else np.flatnonzero(known), head.ids[known])
        if shared is not None:
            known = shared.ids < target.usable_vocab
            self._placed = (shared.rows[known], shared.ids[known])
        self.vocab_size = target.vocab_size
        self.usable = target.usable_vocab if shared is not None else min(target.usable_vocab, model.info.usable_vocab)
        self.width = width if model.info.tree else 1
        self.threshold = threshold
        self.depth = depth
        self._chunk = chunk

    def reading(self, request: Request) -> Reading:
        """How the model reads a request."""
        if self._shared is not None:
            return Translation(request, self._shared)
        return SameIds(request, self.model.info.vocab_size)

    def open(self, request: Request) -> ModelSession:
        return ModelSession(self, request)

    def propose_after(
        self, sessions: Sequence[DraftSession], paths: Sequence[Sequence[int]], budgets: Sequence[int]
    ) -> list[Draft]:
        """One draft per session, all sessions in the same passes. Raises BackendError when a pass fails."""
        plans = [
            Plan(session, path, budget)
            for session, path, budget in zip(cast(Sequence[ModelSession], sessions), paths, budgets, strict=True)
        ]
        live = [plan for plan in plans if plan.open]
        self._catch_up(live)
        while live:
            inputs = [plan.feed(ahead) for plan, ahead in zip(live, self._ahead(live), strict=True)]
            with self.model.forward(inputs, self._needs) as output:
                for index, plan in enumerate(live):
                    states = output.hidden(index, -1) if self._needs.hidden else None
                    output.commit(index, plan.take(output.logits(index), states))
            live = [plan for plan in live if plan.open]
        return [plan.tree.draft(self.name) if len(plan.tree.tokens) else EMPTY for plan in plans]

    def widen(self, row: Floats) -> Floats:
        """A drafter's row at the target's width; ids that it has no row for are impossible."""
        if self._placed is not None:
            rows, ids = self._placed
            wide = np.full(self.vocab_size, -np.inf, dtype=np.float32)
            wide[ids] = row[rows]
            return wide
        if len(row) == self.vocab_size:
            return row
        wide = np.full(self.vocab_size, -np.inf, dtype=np.float32)
        wide[: min(len(row), self.vocab_size)] = row[: self.vocab_size]
        return wide

    def _ahead(self, plans: Sequence[Plan]) -> list[Draft]:
        """What the helper says after each plan's likeliest node."""
        if self.helper is None:
            return [EMPTY] * len(plans)
        wanted = [plan.wants(self._helped) for plan in plans]
        sessions = [plan.session.helper for plan in plans if plan.session.helper is not None]
        drafts = self.helper.propose_after(sessions, [path for path, _ in wanted], [most for _, most in wanted])
        rows, tree = self.model.info.vocab_size, self.model.info.tree
        return [
            draft.fit(nodes=most, depth=most, tree=tree)
            if all(0 <= plan.session.reading.token(token) < rows for token in draft.tokens)
            else EMPTY
            for plan, draft, (_, most) in zip(plans, drafts, wanted, strict=True)
        ]

    def _catch_up(self, plans: Sequence[Plan]) -> None:
        """Read long texts a chunk at a time, all sessions in the same passes."""
        waiting = list(plans)
        while waiting:
            chunks = [(plan, plan.session.chunk(plan.start, self._chunk)) for plan in waiting]
            waiting = [plan for plan, feed in chunks if feed is not None]
            if waiting:
                inputs = [feed for _, feed in chunks if feed is not None]
                with self.model.forward(inputs) as output:
                    for index in range(len(inputs)):
                        output.commit(index, ())

    def close(self) -> None:
        self.prefixes.clear()
        self.model.close()
        if self.helper is not None:
            self.helper.close()
