"""A suffix automaton over growing texts: the longest match of any text so far, in constant amortized time per token.

Blumer et al. (1985), generalized to several texts; as a drafter SAM-Decoding (2411.10666) and SuffixDecoding
(2411.04975). A state stands for the substrings that end at the same places. `link` leads to the longest suffix that
also ends elsewhere, so after a text was read the link of its state is the longest suffix seen before.

Most states have one successor, kept in two arrays; the others have a dictionary. That is about 130 bytes a token.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import islice

START = 0

# Occurrences are counted along this many links. In text chains of links are shorter; repetitions have long ones.
_COUNTED = 24
# A state with very many successors is looked at only through the newest of them.
_LOOKED_AT = 12


class SuffixAutomaton:
    """States are integers; START is the empty string's."""

    def __init__(self) -> None:
        self.length = array("i", [0])
        self.link = array("i", [-1])
        self.count = array("i", [0])  # how often a state's strings occurred
        self._seen = array("i", [0])  # when last
        self.only = array("i", [-1])  # the only successor's token, or -1
        self.after = array("i", [0])  # and state; START where there is none: nothing leads to it
        self._more: dict[int, dict[int, int]] = {}
        self.clock = 0  # how many tokens were read

    def __len__(self) -> int:
        return len(self.length)

    def step(self, state: int, token: int) -> int:
        """The state after `token`, START where it never followed."""
        if self.only[state] == token:
            return self.after[state]
        more = self._more.get(state)
        return more.get(token, START) if more is not None else START

    def extend(self, last: int, token: int) -> int:
        """Append a token to the text that ends in state `last` (START begins one); the text's new state."""
        link, length = self.link, self.length
        found = self.step(last, token)
        if found:
            state = found if length[found] == length[last] + 1 else self._clone(last, token, found)
        else:
            state = self._new(length[last] + 1)
            at = last
            while at != -1 and not (found := self.step(at, token)):
                self._lead(at, token, state)
                at = link[at]
            if at == -1:
                link[state] = START
            else:
                link[state] = found if length[found] == length[at] + 1 else self._clone(at, token, found)
        self.clock += 1
        count, seen, at = self.count, self._seen, state
        for _ in range(_COUNTED):
            count[at] += 1
            seen[at] = self.clock
            at = link[at]
            if at <= START:
                break
        return state

    def follow(self, state: int, length: int, tokens: Iterable[int]) -> tuple[int, int]:
        """From the longest match (state, its length) of a text to that of the text with `tokens` after it."""
        state, length = self.settle(state, length)
        for token in tokens:
            after = self.step(state, token)
            while not after and state:
                state = self.link[state]
                length = self.length[state]
                after = self.step(state, token)
            if after:
                state, length = after, length + 1
        return state, length

    def settle(self, state: int, length: int) -> tuple[int, int]:
        """The state that a match of `length` belongs to now: states that have been split since are put right."""
        while state and self.length[self.link[state]] >= length:
            state = self.link[state]
        return state, length

    def likeliest(self, state: int, most: int) -> list[tuple[int, int, int]]:
        """At most `most` of (count, token, state) that followed a state: most frequent, then most recent first."""
        token = self.only[state]
        if token >= 0:
            after = self.after[state]
            return [(self.count[after], token, after)]
        more = self._more.get(state)
        if more is None:
            return []
        count, seen = self.count, self._seen
        newest = islice(reversed(more.items()), _LOOKED_AT)
        ranked = [(count[after], seen[after], token, after) for token, after in newest]
        ranked.sort(reverse=True)
        return [(often, token, after) for often, _, token, after in ranked[:most]]

    def _new(self, length: int) -> int:
        self.length.append(length)
        self.link.append(-1)
        self.count.append(0)
        self._seen.append(0)
        self.only.append(-1)
        self.after.append(START)
        return len(self.length) - 1

    def _lead(self, state: int, token: int, after: int) -> None:
        """Set a transition."""
        more = self._more.get(state)
        if more is not None:
            more[token] = after
        elif self.only[state] in (-1, token):
            self.only[state], self.after[state] = token, after
        else:
            self._more[state] = {self.only[state]: self.after[state], token: after}
            self.only[state] = -1

    def _clone(self, at: int, token: int, found: int) -> int:
        """Split off the strings of `found` that end a string of `at` and `token`: they now occur more often."""
        state = self._new(self.length[at] + 1)
        self.link[state], self.link[found] = self.link[found], state
        self.count[state], self._seen[state] = self.count[found], self._seen[found]
        self.only[state], self.after[state] = self.only[found], self.after[found]
        if found in self._more:
            self._more[state] = dict(self._more[found])
        while at != -1 and self.step(at, token) == found:
            self._lead(at, token, state)
            at = self.link[at]
        return state
