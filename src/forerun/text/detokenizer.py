"""Token ids to text as they come: never half a character, and all pieces together are the decoded whole."""

from __future__ import annotations

import codecs

from forerun.tokenizers.tokenizer import Tokenizer


class Detokenizer:
    """Turns a stream of token ids into text.

    A character whose bytes are spread over several tokens comes out with the last of them. The pieces of `push` and
    `finish` joined are `tokenizer.decode` of all ids, with the same `skip_special` and `continues`.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True, continues: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.control_ids if skip_special else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = tokenizer.strips_space and not continues

    def push(self, token: int) -> str:
        """The text that one more token completes, possibly none."""
        if token in self._skipped:
            return ""
        return self._started(self._decoder.decode(self._tokenizer.token_bytes(token)))

    def finish(self) -> str:
        """What is left when no token follows: U+FFFD for a character that was never completed."""
        return self._started(self._decoder.decode(b"", final=True))

    def _started(self, text: str) -> str:
        """`text` without the one space that encoding puts in front of everything, where the tokenizer does so."""
        if not self._strip or not text:
            return text
        self._strip = False
        return text.removeprefix(" ")
