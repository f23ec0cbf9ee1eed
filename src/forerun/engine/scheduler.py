"""Which sequences take part in the next pass, and how much of a prompt each reads (continuous batching).

First come, first served. Sequences that decode always take part; prompts share what is left of the pass, so a long prompt
never stops the others from writing, nor a short prompt behind it from being read. A sequence is let in when there are pages
for all of its prompt. When pages run short the prefixes kept for later are given up first; then the sequence that came last
is set back to wait, its pages freed: its tokens stay, and are read again when there is room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Several
from dataclasses import dataclass

from forerun.core.model import Model
from forerun.core.prefix_cache import PrefixCache, common_length
from forerun.engine.sequence import Sequence
from forerun.errors import BackendError, UsageError

# Tokens that two prompts have in common from which it is worth waiting for the one to be read.
_WORTH_WAITING = 64
# Prompt tokens in a pass that gives logits after each of them, which take memory.
_SCORED_ROWS = 64


@dataclass(frozen=True)
class Turn:
    """One sequence's part in a pass: the committed tokens that it reads, and whether the last of them is the root.

    nodes: how many drafted nodes there are pages for.
    """

    sequence: Sequence
    input_tokens: tuple[int, ...]
    decodes: bool
    nodes: int = 0


class Scheduler:
    """The queue, the live sequences and their memory in the target.

    prefixes: kept prefixes, to start from and to give up. max_sequences: most sequences live at once.
    prefill_rows: prompt tokens read in one pass, over all sequences; shared_rows: the same where others decode in it, who
        wait for them. wants_hidden: whether drafters look at hidden states.
    """

    def __init__(
        self,
        target: Model,
        prefixes: PrefixCache,
        *,
        max_sequences: int,
        prefill_rows: int,
        shared_rows: int,
        wants_hidden: bool,
    ) -> None:
        self.waiting: deque[Sequence] = deque()
        self.live: list[Sequence] = []
        self._target, self._prefixes = target, prefixes
        self._max_sequences = max_sequences
        self._prefill_rows, self._shared_rows = prefill_rows, shared_rows
        self._wants_hidden = wants_hidden

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises UsageError where its constraint follows another one at the time."""
        if sequence.constraint is not None:
            if any(one.constraint is sequence.constraint for one in (*self.live, *self.waiting)):
                raise UsageError("a constraint follows one text at a time; give each text one of its own.")
            sequence.constraint.restart(())
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        if sequence in self.live:
            self.live.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def schedule(self) -> tuple[list[Turn], list[Sequence]]:
        """The turns of the next pass, and the sequences that were set back for it.

        Invariant: a decoding sequence's KV is one token short of its text.
        """
        self._admit()
        set_back: list[Sequence] = []
        while True:
            turns = self._turns()
            short = sum(map(_pages, turns)) - self._target.room().free
            if short <= 0 or (len(self.live) <= 1 and not len(self._prefixes)):
                return self._with_nodes(turns, -short), set_back
            if not self._prefixes.drop():
                last = self.live[-1]
                self.waiting.appendleft(last)
                self.live.remove(last)
                self.release(last)
                set_back.append(last)

    def release(self, sequence: Sequence) -> None:
        """Free a sequence's pages. What it has read is read again when it is live."""
        kv, sequence.kv = sequence.kv, None
        if kv is not None:
            kv.close()

    def recover(self) -> None:
        """After an interrupt: no sequence is in two places, or twice in one."""
        self.live = list(dict.fromkeys(self.live))
        self.waiting = deque(dict.fromkeys(sequence for sequence in self.waiting if sequence not in self.live))

    def _admit(self) -> None:
        """Let waiting sequences in, oldest first, as long as there is a place and room for what they must read.

        Each live sequence may soon take a page more; without that reserve the newcomer would be set back at once.
        """
        while self.waiting and len(self.live) < self._max_sequences:
            sequence = self.waiting[0]
            if self._is_being_read(sequence):
                return
            self._open(sequence)
            needed = sum(map(_unread_pages, (*self.live, sequence))) + len(self.live)
            while needed > self._target.room().free and self._prefixes.drop():
                pass
            if self.live and needed > self._target.room().free:
                self.release(sequence)
                return
            # In this order an interrupt leaves it in both places, never in none.
            self.live.append(sequence)
            self.waiting.popleft()

    def _is_being_read(self, sequence: Sequence) -> bool:
        """Whether a live sequence is reading a prompt that starts the same: it is kept once it was read (Engine._keep_prompt),
        so waiting is quicker than reading it twice."""
        prompt = sequence.request.prompt
        if sequence.scores_prompt or not self._prefixes.keeps:
            return False
        return any(
            other.unread > 1
            and not other.generated
            and other.request.memory == sequence.request.memory
            and common_length(other.request.prompt, prompt) >= _WORTH_WAITING
            for other in self.live
        )

    def _open(self, sequence: Sequence) -> None:
        """Give a sequence its KV, from a kept prefix where there is one."""
        kept = None
        if not sequence.scores_prompt:
            try:
                kept = self._prefixes.take(sequence.tokens, sequence.request.memory, hidden=self._wants_hidden)
            except BackendError:
                # No memory for a copy: without the kept ones there may be room for reading the text anew.
                self._prefixes.clear()
        if kept is None:
            sequence.kv, sequence.hidden = self._target.open(), {}
        else:
            sequence.kv, sequence.hidden = kept
        if not sequence.generated:
            sequence.cached = sequence.read

    def _turns(self) -> list[Turn]:
        turns: list[Turn] = []
        for sequence in self.live:
            if sequence.kv is None:
                self._open(sequence)
        shares = self._shares()
        for sequence in self.live:
            unread = sequence.unread
            taken = 1 if unread == 1 else shares.get(sequence, 0)
            if taken:
                start = sequence.read
                turns.append(Turn(sequence, tuple(sequence.tokens[start : start + taken]), decodes=taken == unread))
        return turns

    def _shares(self) -> dict[Sequence, int]:
        """How many tokens of their prompts sequences read in this pass.

        Half goes to the one that came first, then what is needed to the one that is nearest to its end, so that a short
        prompt need not wait for a long one; the rest in the order in which they came.
        """
        reading = [sequence for sequence in self.live if sequence.unread > 1]
        left = self._prefill_rows if len(reading) == len(self.live) else self._shared_rows
        if any(sequence.scores_prompt for sequence in reading):
            left = min(left, _SCORED_ROWS)
        shares = dict.fromkeys(reading, 0)
        if reading:
            nearest = min(reading, key=lambda sequence: sequence.unread)
            for sequence, most in ((reading[0], -(-left // 2)), (nearest, left), *((one, left) for one in reading)):
                taken = min(most, left, sequence.unread - shares[sequence])
                shares[sequence] += taken
                left -= taken
        return shares

    def _with_nodes(self, turns: Several[Turn], free: int) -> list[Turn]:
        """The turns with the nodes that fit into the pages that are left, `free` of them."""
        page = self._target.room().page
        fitted: list[Turn] = []
        for turn in turns:
            if turn.decodes:
                slack = -(turn.sequence.read + len(turn.input_tokens)) % page
                extra, free = (page, free - 1) if free > 0 else (0, free)
                turn = Turn(turn.sequence, turn.input_tokens, True, slack + extra)
            fitted.append(turn)
        return fitted


def _pages(turn: Turn) -> int:
    """Pages that a turn takes without a draft."""
    kv = turn.sequence.kv
    return 0 if kv is None else kv.pages_needed(kv.length + len(turn.input_tokens))


def _unread_pages(sequence: Sequence) -> int:
    """Pages that a sequence takes to read all of its text."""
    return 0 if sequence.kv is None else sequence.kv.pages_needed(len(sequence.tokens))
