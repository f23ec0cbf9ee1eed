"""The drafter that never proposes: plain decoding through the same loop."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.core.draft import EMPTY, Draft
from forerun.core.request import Request
from forerun.drafters.base import Session, SessionDrafter


class NoneSession(Session):
    def propose_after(self, path: Sequence[int], budget: int) -> Draft:
        return EMPTY


class NoneDrafter(SessionDrafter[NoneSession]):
    """Every draft is empty."""

    name = "none"

    def open(self, request: Request) -> NoneSession:
        return NoneSession(request)
