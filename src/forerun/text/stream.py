"""From tokens to text that can be shown: detokenized piece by piece, ended by end tokens and stop strings."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.text.detokenizer import Detokenizer
from forerun.text.stops import StopScanner
from forerun.tokenizers.tokenizer import Tokenizer


class TextStream:
    """The text of one request, fed token by token by the engine (engine.sequence.Watcher).

    stops: strings that end the text and are cut from it. ends: token ids that end it and leave no text.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], ends: frozenset[int]) -> None:
        self._tokenizer, self._stops, self._ends = tokenizer, stops, ends
        # How many tokens' pieces were taken, and whether what `finish` released was: shown text stays shown.
        self._taken, self._tail_taken = 0, False
        self._start()

    def _start(self) -> None:
        self._detokenizer = Detokenizer(self._tokenizer, continues=True)
        self._scanner = StopScanner(self._stops)
        self._pieces: list[str] = []
        self._tail: str | None = None

    @property
    def text(self) -> str:
        """Everything that can be shown so far."""
        return "".join(self._pieces) + (self._tail or "")

    def push(self, token: int) -> bool:
        """Add a token; true when a stop string is complete, with it or before."""
        self._pieces.append("" if token in self._ends else self._scanner.push(self._detokenizer.push(token)))
        return self._scanner.stopped

    def finish(self) -> None:
        """Release what was held back: no token follows. Calling it again does nothing."""
        if self._tail is None:
            self._tail = self._scanner.push(self._detokenizer.finish()) + self._scanner.finish()

    def take(self) -> list[str]:
        """Pieces since the last call, one per token. What `finish` released belongs to the last one."""
        pieces, self._taken = self._pieces[self._taken :], max(self._taken, len(self._pieces))
        if self._tail and not self._tail_taken:
            self._tail_taken = True
            pieces = [*pieces[:-1], "".join(pieces[-1:]) + self._tail]
        return pieces

    def replay(self, tokens: Sequence[int]) -> int | None:
        """Start again with `tokens`, all that were committed, after the engine has lost or repeated some in a fault.

        Pieces of tokens that were taken are not given again. Returns the index of the token that completed a stop
        string, None where none did.
        """
        self._start()
        stopped = [self.push(token) for token in tokens]
        return stopped.index(True) if True in stopped else None
