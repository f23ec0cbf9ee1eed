"""From tokens to text that can be shown: detokenized piece by piece, ended by end tokens and stop strings."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.text.detokenizer import Detokenizer
from forerun.text.stops import StopScanner
from forerun.tokenizers.tokenizer import Tokenizer


class TextStream:
    """The text of one request, fed token by token by the engine (core.request.Watcher).

    stops: strings that end the text and are cut from it. ends: token ids that end it and leave no text.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], ends: frozenset[int]) -> None:
        self._detokenizer = Detokenizer(tokenizer, continues=True)
        self._scanner = StopScanner(stops)
        self._ends = ends
        self._pieces: list[str] = []
        self._text: list[str] = []
        self._finished = False

    @property
    def text(self) -> str:
        """Everything that can be shown so far."""
        return "".join(self._text)

    def push(self, token: int) -> bool:
        """Add a token; true when it completed a stop string."""
        piece = "" if token in self._ends else self._scanner.push(self._detokenizer.push(token))
        self._release(piece)
        return self._scanner.stopped

    def finish(self) -> None:
        """Release what was held back: no token follows. Calling it again does nothing."""
        if not self._finished:
            self._finished = True
            tail = self._scanner.push(self._detokenizer.finish()) + self._scanner.finish()
            if tail:
                self._text.append(tail)
                self._pieces = [*self._pieces[:-1], (self._pieces or [""])[-1] + tail]

    def take(self) -> list[str]:
        """Pieces since the last call, one per token."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def _release(self, piece: str) -> None:
        self._text.append(piece)
        self._pieces.append(piece)
