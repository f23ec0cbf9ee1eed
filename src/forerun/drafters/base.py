"""What every drafter here is made of: sessions, each of which is a drafter's memory of one text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar, cast

from forerun.core.draft import EMPTY, Draft
from forerun.core.model import NOTHING, Needs
from forerun.core.protocols import DraftRequest
from forerun.core.step import StepResult
from forerun.core.transcript import Transcript


class Session:
    """A drafter's memory of one text. `transcript.tokens` only grows, so a session catches up with it when asked."""

    def __init__(self, transcript: Transcript) -> None:
        self.transcript = transcript

    @property
    def unread(self) -> int:
        """Tokens of the text that a model must read before this session's next draft."""
        return 0

    def observe(self, result: StepResult) -> None:
        """Learn what a step committed; nothing by default."""

    def finish(self) -> None:
        """The text has come to its end: keep what later texts may draft from; nothing by default."""

    def close(self) -> None:
        """Give up what the session holds. Closing twice is harmless."""


S = TypeVar("S", bound=Session)


class SessionDrafter(ABC, Generic[S]):
    """A drafter that runs no model: it drafts for one text after the other."""

    name: str
    needs: Needs = NOTHING

    @abstractmethod
    def open(self, transcript: Transcript) -> S:
        """A session for a text. `transcript` grows as the text does."""

    @abstractmethod
    def draft(self, session: S, path: Sequence[int], nodes: int) -> Draft:
        """At most `nodes` nodes, one or more, to follow the session's text and then the tokens of `path`."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft for each request."""
        return [
            self.draft(cast(S, request.session), request.path, request.nodes) if request.nodes > 0 else EMPTY
            for request in requests
        ]

    def close(self) -> None:
        """Give up what the drafter holds. Closing twice is harmless."""
