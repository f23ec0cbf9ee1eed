"""A model that drafts: how its ids and rows map to the target's, and its KV of each text.

The KV follows the commits without being told of them: a session knows which tokens its KV has read, cuts it back to what
they share with the text that is wanted now, and reads the rest.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from forerun.core.model import KV, NOTHING, Borrower, Floats, ForwardInput, Model, ModelInfo, Needs
from forerun.core.prefix_cache import PrefixCache
from forerun.core.protocols import DraftSession
from forerun.core.step import StepResult
from forerun.core.transcript import Transcript
from forerun.drafters.base import Session
from forerun.drafters.bridge import Reading, SameIds, Shared, Translation
from forerun.drafters.head import Head, Widened


class DraftModel:
    """A model with the target's ids. Padded vocabulary sizes may differ: ids that either side does not have are never
    proposed, and rows get the target's width.

    head: for a model whose head covers some ids only (FR-Spec, 2502.14856), which; and how others are scored.
    borrows: go on from the target's KV, which the model must be able to read (`Borrower`), and read no text of its own.
    shared: for a model of another vocabulary, what the two share: it reads the text in its own tokens and draws among the
        shared ones alone (TLI, 2502.05202).
    keep_prefixes: ended texts whose KV is kept for texts that start the same.
    """

    def __init__(
        self,
        model: Model,
        target: ModelInfo,
        *,
        name: str,
        head: Head | None = None,
        borrows: bool = False,
        shared: Shared | None = None,
        keep_prefixes: int = 0,
    ) -> None:
        self.model = model
        self.name = name
        # Two models that draft for one text must not draw with the same noise.
        self.noise_id = zlib.crc32(name.encode())
        self.prefixes = PrefixCache(0 if borrows else keep_prefixes, model.info)
        self.borrower = cast(Borrower, model) if borrows else None
        self.head = head
        self.needs = Needs((-1,)) if head is not None and head.vectors is not None else NOTHING
        self._shared = shared
        self._placed: tuple[slice | NDArray[Any], NDArray[Any]] | None = None
        if head is not None:
            known = head.ids < target.vocab_size
            self._placed = (slice(None) if known.all() else np.flatnonzero(known), head.ids[known])
        if shared is not None:
            known = shared.ids < target.usable_vocab
            self._placed = (shared.rows[known], shared.ids[known])
        self.vocab_size = target.vocab_size
        self.usable = target.usable_vocab if shared is not None else min(target.usable_vocab, model.info.usable_vocab)

    def reading(self, transcript: Transcript) -> Reading:
        """How the model reads a text."""
        if self._shared is not None:
            return Translation(transcript, self._shared)
        return SameIds(transcript, self.model.info.vocab_size)

    def widen(self, row: Floats) -> Floats:
        """A row of the model's at the target's width; ids that it has no row for are impossible."""
        if self._placed is None and len(row) == self.vocab_size:
            return row
        wide = np.full(self.vocab_size, -np.inf, dtype=np.float32)
        if self._placed is not None:
            rows, ids = self._placed
            wide[ids] = row[rows]
        else:
            wide[: min(len(row), self.vocab_size)] = row[: self.vocab_size]
        return wide


class ModelSession(Session):
    """A draft model's KV of one text, and which tokens it has read. stage: the session of what drafts for this model."""

    def __init__(self, source: DraftModel, transcript: Transcript, stage: DraftSession | None) -> None:
        super().__init__(transcript)
        self.source = source
        self.stage = stage
        self.reading = source.reading(transcript)
        self.widened = Widened(source.head, transcript) if source.head is not None else None
        # Some readings have to translate a whole text first.
        memory = transcript.request.memory
        kept = source.prefixes.take(self.reading.tokens, memory) if len(source.prefixes) else None
        self._kv = kept[0] if kept is not None else source.model.open()
        self._borrowed = 0  # how many tokens the target's KV had read when it was borrowed
        self._read = list(self.reading.tokens[: self._kv.length])
        self._agreed = len(self._read)  # how many of them are known to be the text's: its tokens never change
        self._closed = False

    @property
    def unread(self) -> int:
        """Tokens of the text that the model, or one that drafts for it, has yet to read."""
        own = 0 if self.source.borrower is not None else max(0, len(self.reading.tokens) - len(self._read))
        return own + (0 if self.stage is None else self.stage.unread)

    def tail(self, path: Sequence[int], lent: KV | None) -> tuple[int, ...] | None:
        """What to read after `reading.tokens` for the text and `path`; None where the model cannot.

        lent: the target's KV.
        """
        # In its first step the target may be reading the prompt: only then is there something to borrow.
        waits = self.source.borrower is not None and lent is not None and not self.transcript.generated
        return None if self._closed or waits else self.reading.tail(path)

    def seek(self, path: Sequence[int], lent: KV | None = None) -> tuple[KV, tuple[int, ...]]:
        """Cut the KV to what it shares with the text and `path`; (KV, the tokens to read, at least one).

        path: in the model's ids, as all below.
        """
        tokens = self.reading.tokens
        self._borrow(lent)
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

    def _borrow(self, lent: KV | None) -> None:
        """Go on from the target's KV, where the model can read it and the target has read on."""
        borrower = self.source.borrower
        if borrower is None or lent is None or lent.length == self._borrowed:
            return
        own, self._kv = self._kv, borrower.borrow(lent)
        own.close()
        self._borrowed = self._agreed = lent.length
        self._read = list(self.reading.tokens[: lent.length])

    def read_to(self, path: Sequence[int]) -> None:
        """Note that the KV has now read the text and `path`."""
        self._read += [*self.reading.tokens, *path][len(self._read) :]

    def chunk(self, path: Sequence[int], size: int, lent: KV | None) -> ForwardInput | None:
        """A pass that reads `size` tokens of a long text; None when what is left fits the pass that drafts."""
        kv, unread = self.seek(path, lent)
        if len(unread) <= size:
            return None
        self._read += unread[:size]
        return ForwardInput(kv, unread[:size], logits=False)

    def observe(self, result: StepResult) -> None:
        if self.stage is not None:
            self.stage.observe(result)

    def finish(self) -> None:
        """Keep what was read for the next text that starts the same: the next turn of a chat."""
        if self.stage is not None:
            self.stage.finish()
        if not self._closed:
            self._closed = True
            read = self._read[: self._kv.length]
            self.source.prefixes.put(read, self._kv, self.transcript.request.memory)

    def close(self) -> None:
        if self.stage is not None:
            self.stage.close()
        if not self._closed:
            self._closed = True
            self._kv.close()
