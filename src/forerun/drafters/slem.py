"""String-level exact match: a model of any vocabulary drafts text, which is read again in the target's tokens.

SLEM of Timor et al. (2502.05202). The model writes its own likeliest tokens; their text, put after the target's last
word, is encoded by the target's tokenizer, and what it adds is proposed as a chain. Proposals are deterministic, so
every rule stays exact; unlike the restricted draw of TLI it may use words that the vocabularies cut differently.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import cast

from forerun.core.draft import EMPTY, Draft
from forerun.core.protocols import DraftSession, Model
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.drafters.base import Session, SessionDrafter
from forerun.drafters.bridge import Shared, Translation
from forerun.drafters.model import ModelDrafter


class SlemSession(Session):
    """The request's text in the model's tokens, kept as a request of the model's own."""

    def __init__(self, drafter: SlemDrafter, request: Request) -> None:
        super().__init__(request)
        self._drafter = drafter
        self._text = Translation(request, drafter.shared)
        self._own = Request(self._text.tokens, Sampling(temperature=0.0, max_tokens=None))
        self.session = drafter.model.open(self._own)

    def start(self, path: Sequence[int]) -> tuple[int, ...] | None:
        """Bring the model's request up to date; the model's tokens that come after it, None where there are none."""
        self._catch_up()
        return self._text.spelled(path)

    def _catch_up(self) -> None:
        tokens = self._text.tokens
        self._own.tokens += tokens[len(self._own.tokens) :]

    def propose_after(self, path: Sequence[int], budget: int) -> Draft:
        return self._drafter.propose_after([self], [path], [budget])[0]

    @property
    def unread(self) -> int:
        """Tokens of the text that the model has yet to read."""
        self._catch_up()
        return self.session.unread

    def encode(self, path: Sequence[int], draft: Draft, budget: int) -> Draft:
        """A draft of the model's in the target's tokens."""
        shared = self._drafter.shared
        control = shared.draft.control_ids
        length = next((i for i, token in enumerate(draft.tokens) if token in control), len(draft))
        pieces = [shared.draft.token_bytes(token) for token in draft.tokens[:length]]
        tokens = self._encode(path, b"".join(pieces))
        if length < len(draft):
            # The model ends its turn here; the target may have the same way to say so.
            tokens += [i for i in [self._drafter.ends.get(draft.tokens[length])] if i is not None]
        tokens = [token for token in tokens[:budget] if token < self._drafter.usable]
        if not tokens:
            return EMPTY
        scores = self._scores(draft, pieces, tokens)
        return Draft(tuple(tokens), tuple(range(-1, len(tokens) - 1)), source=self._drafter.name, scores=scores)

    def _encode(self, path: Sequence[int], text: bytes) -> list[int]:
        target = self._drafter.shared.target
        before: list[int] = []
        for token in [*self._text.open, *path]:
            before = [] if token in target.control_ids else [*before, token]
        lead = b"".join(map(target.token_bytes, before))
        whole = (lead + text).decode("utf-8", "ignore")
        tokens = target.encode(whole, add_bos=False) if whole else []
        if tokens[: len(before)] == before:
            return tokens[len(before) :]
        rest = text.decode("utf-8", "ignore")
        return target.encode(rest, add_bos=False) if rest else []

    def _scores(self, draft: Draft, pieces: Sequence[bytes], tokens: Sequence[int]) -> tuple[float, ...]:
        """A token is as likely as the model's tokens that end within it."""
        given = draft.scores or (0.5,) * len(draft)
        reach = list(accumulate(given, lambda above, score: above * score))
        ends = list(accumulate(len(piece) for piece in pieces))
        spelled = accumulate(len(self._drafter.shared.target.token_bytes(token)) for token in tokens)
        reached = [reach[min(bisect_left(ends, end), len(reach) - 1)] for end in spelled]
        return tuple(
            min(1.0, now / before) if before > 0 else 0.0
            for before, now in zip([1.0, *reached[:-1]], reached, strict=True)
        )

    def close(self) -> None:
        self.session.close()


class SlemDrafter(SessionDrafter[SlemSession]):
    """Drafts with a model of another vocabulary. usable: the target's ids that are tokens."""

    def __init__(
        self, model: Model, usable: int, shared: Shared, *, name: str = "", chunk: int = 256, keep_prefixes: int = 0
    ) -> None:
        self.model = ModelDrafter(model, model.info, chunk=chunk, keep_prefixes=keep_prefixes)
        self.shared, self.usable = shared, usable
        self.name = name or f"model:{model.info.name}"
        pairs = {int(other): token for token, other in enumerate(shared.to_draft) if token in shared.target.control_ids}
        self.ends = {other: token for other, token in pairs.items() if other >= 0}

    def open(self, request: Request) -> SlemSession:
        return SlemSession(self, request)

    def propose_after(
        self, sessions: Sequence[DraftSession], paths: Sequence[Sequence[int]], budgets: Sequence[int]
    ) -> list[Draft]:
        """One draft per session, all sessions in the same passes of the model."""
        own = cast(Sequence[SlemSession], sessions)
        starts = [session.start(path) for session, path in zip(own, paths, strict=True)]
        drafts = self.model.propose_after(
            [session.session for session in own],
            [start or () for start in starts],
            [budget if start is not None else 0 for start, budget in zip(starts, budgets, strict=True)],
        )
        return [
            session.encode(path, draft, budget) if len(draft) else EMPTY
            for session, path, draft, budget in zip(own, paths, drafts, budgets, strict=True)
        ]

    def close(self) -> None:
        self.model.close()
