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
from forerun.core.model import NOTHING, Model
from forerun.core.protocols import DraftRequest
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.core.step import StepResult
from forerun.core.transcript import Transcript
from forerun.drafters.base import Session
from forerun.drafters.bridge import Shared, Translation
from forerun.drafters.model import ModelDrafter

_GREEDY = Sampling(temperature=0.0, max_tokens=None)


class SlemSession(Session):
    """A text in the model's tokens, kept as a text of the model's own."""

    def __init__(self, drafter: SlemDrafter, transcript: Transcript) -> None:
        super().__init__(transcript)
        self._drafter = drafter
        self._text = Translation(transcript, drafter.shared)
        self._own = Transcript(Request(self._text.tokens, _GREEDY, memory=transcript.request.memory))
        self.inner = drafter.model.open(self._own)

    def request(self, asked: DraftRequest) -> DraftRequest:
        """What to ask of the model: the same, after its own tokens for the text and the path."""
        self._catch_up()
        path = self._text.spelled(asked.path)
        return DraftRequest(
            self.inner,
            asked.nodes if path is not None else 0,
            depth=asked.depth,
            path=path or (),
            min_probability=asked.min_probability,
        )

    def _catch_up(self) -> None:
        for token in self._text.tokens[len(self._own.tokens) :]:
            self._own.add(token)

    @property
    def unread(self) -> int:
        """Tokens of the text that the model has yet to read."""
        self._catch_up()
        return self.inner.unread

    def encode(self, path: Sequence[int], draft: Draft, nodes: int) -> Draft:
        """A draft of the model's in the target's tokens."""
        shared = self._drafter.shared
        control = shared.draft.control_ids
        length = next((i for i, token in enumerate(draft.tokens) if token in control), len(draft))
        pieces = [shared.draft.token_bytes(token) for token in draft.tokens[:length]]
        tokens = self._encode(path, b"".join(pieces))
        if length < len(draft):
            # The model ends its turn here; the target may have the same way to say so.
            tokens += [i for i in [self._drafter.ends.get(draft.tokens[length])] if i is not None]
        tokens = [token for token in tokens[:nodes] if token < self._drafter.usable]
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

    def observe(self, result: StepResult) -> None:
        self.inner.observe(result)

    def finish(self) -> None:
        self._catch_up()
        self.inner.finish()

    def close(self) -> None:
        self.inner.close()


class SlemDrafter:
    """Drafts with a model of another vocabulary. usable: the target's ids that are tokens."""

    needs = NOTHING

    def __init__(
        self, model: Model, usable: int, shared: Shared, *, name: str = "", chunk: int = 256, keep_prefixes: int = 0
    ) -> None:
        self.model = ModelDrafter(model, model.info, chunk=chunk, keep_prefixes=keep_prefixes)
        self.shared, self.usable = shared, usable
        self.name = name or f"model:{model.info.name}"
        pairs = {int(other): token for token, other in enumerate(shared.to_draft) if token in shared.target.control_ids}
        self.ends = {other: token for other, token in pairs.items() if other >= 0}

    def open(self, transcript: Transcript) -> SlemSession:
        return SlemSession(self, transcript)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft for each request, all texts in the same passes of the model."""
        sessions = [cast(SlemSession, request.session) for request in requests]
        drafts = self.model.propose([session.request(asked) for session, asked in zip(sessions, requests, strict=True)])
        return [
            session.encode(asked.path, draft, asked.nodes) if len(draft) else EMPTY
            for session, asked, draft in zip(sessions, requests, drafts, strict=True)
        ]

    def close(self) -> None:
        """Release the model. Closing twice is harmless."""
        self.model.close()
