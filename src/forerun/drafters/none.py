"""The drafter that never proposes: plain decoding through the same loop."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.core.draft import EMPTY, Draft
from forerun.core.transcript import Transcript
from forerun.drafters.base import Session, SessionDrafter


class NoneDrafter(SessionDrafter[Session]):
    """Every draft is empty."""

    name = "none"

    def open(self, transcript: Transcript) -> Session:
        return Session(transcript)

    def draft(self, session: Session, path: Sequence[int], nodes: int) -> Draft:  # noqa: ARG002
        return EMPTY
