"""What every drafter here is made of: a session that proposes after a path, and a drafter that asks its sessions in turn.

`propose_after(path, budget)` proposes as if the tokens of `path` had already followed the request's. It is what lets
one drafter extend another's leaves, or draft for a draft model. `propose` is the same with the empty path.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar, cast, runtime_checkable

from forerun.core.draft import Draft
from forerun.core.protocols import NOTHING, DraftSession, Needs
from forerun.core.request import Request
from forerun.core.step import StepResult


@runtime_checkable
class Continues(Protocol):
    """A drafter that can propose after tokens which are not committed yet."""

    def propose_after(
        self, sessions: Sequence[DraftSession], paths: Sequence[Sequence[int]], budgets: Sequence[int]
    ) -> list[Draft]:
        """One draft per session, hanging off the last token of its path (off the root where the path is empty)."""
        ...


class Session(ABC):
    """A drafter's memory of one request. `request.tokens` only grows, so a session catches up with it when asked."""

    def __init__(self, request: Request) -> None:
        self.request = request

    def propose(self, budget: int) -> Draft:
        """At most `budget` nodes to follow the request's tokens."""
        return self.propose_after((), budget)

    @abstractmethod
    def propose_after(self, path: Sequence[int], budget: int) -> Draft:
        """At most `budget` nodes to follow the request's tokens and then those of `path`."""

    @property
    def unread(self) -> int:
        """Tokens of the text that a model must read before this session's next draft."""
        return 0

    def observe(self, result: StepResult) -> None:  # noqa: B027
        """Learn what a round committed; nothing by default."""

    def close(self) -> None:  # noqa: B027
        """Give up what the session holds. Closing twice is harmless."""


def unread(session: DraftSession | None) -> int:
    """`Session.unread` of any session, also of one from another package that knows nothing of it."""
    return getattr(session, "unread", 0)


S = TypeVar("S", bound=Session)


class SessionDrafter(ABC, Generic[S]):
    """A drafter whose work is done by its sessions, one after the other."""

    name: str
    needs: Needs = NOTHING

    @abstractmethod
    def open(self, request: Request) -> S: ...

    def propose(self, sessions: Sequence[DraftSession], budgets: Sequence[int]) -> list[Draft]:
        """One draft per session."""
        return self.propose_after(sessions, [()] * len(sessions), budgets)

    def propose_after(
        self, sessions: Sequence[DraftSession], paths: Sequence[Sequence[int]], budgets: Sequence[int]
    ) -> list[Draft]:
        """One draft per session, each after its path (see Continues)."""
        return [
            session.propose_after(path, budget)
            for session, path, budget in zip(cast(Sequence[S], sessions), paths, budgets, strict=True)
        ]

    def close(self) -> None:
        """Give up what the drafter holds. Closing twice is harmless."""
