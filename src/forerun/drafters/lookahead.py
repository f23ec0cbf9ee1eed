"""Lookahead: a pool of n-grams that the target itself made up while guessing ahead (Fu et al. 2402.02057).

Half of the budget is the window, a chain of guesses at the next tokens. The target's answers after them are the next
window (a Jacobi step), and each run of guesses with the answer after it is an n-gram for the pool; so is the text
itself. The other half drafts n-grams of the pool that begin with the root. The paper hides the window from the tokens
that are verified and reads it in rows of its own; here both are branches of one draft, so no rows are needed beyond the
budget, and a window that is right is accepted like any other draft.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from forerun.core.draft import EMPTY, ROOT, Draft
from forerun.core.request import Request
from forerun.core.step import StepResult
from forerun.drafters.base import Session, SessionDrafter
from forerun.drafters.growth import Growth
from forerun.drafters.rates import Rates

_GRAM = 4
_PER_TOKEN = 6


class Pool:
    """token -> the runs of up to `_GRAM - 1` tokens that were made up after it, the latest last."""

    def __init__(self) -> None:
        self._runs: dict[int, OrderedDict[tuple[int, ...], None]] = {}

    def add(self, token: int, run: tuple[int, ...]) -> None:
        runs = self._runs.setdefault(token, OrderedDict())
        runs[run] = None
        runs.move_to_end(run)
        if len(runs) > _PER_TOKEN:
            runs.popitem(last=False)

    def after(self, token: int) -> list[tuple[int, ...]]:
        """The latest first."""
        return list(reversed(self._runs.get(token, ())))


class LookaheadSession(Session):
    def __init__(self, drafter: LookaheadDrafter, request: Request) -> None:
        super().__init__(request)
        self._drafter = drafter
        self._pool = Pool()
        self._window: list[int] = []
        self._read = 0

    def propose_after(self, path: Sequence[int], budget: int) -> Draft:
        if budget <= 0:
            return EMPTY
        self._catch_up()
        root = path[-1] if path else self.request.tokens[-1]
        window = [] if path else self._guess(root, max(1, budget // 2))
        tree = Growth(budget)
        for rank, run in enumerate(self._pool.after(root)):
            self._hang(tree, run, self._drafter.rates[min(rank, _PER_TOKEN - 1)], budget - len(window))
        self._hang(tree, window, self._drafter.rates[_PER_TOKEN], budget)
        return tree.draft("lookahead")

    def _guess(self, root: int, count: int) -> list[int]:
        """The window, filled up from the pool and, where that has nothing, from the text itself."""
        window = self._window[:count]
        while len(window) < count:
            runs = self._pool.after(window[-1] if window else root)
            text = self.request.tokens
            window.append(runs[0][0] if runs else text[(len(window) * 7 + len(text) // 2) % len(text)])
        return window

    @staticmethod
    def _hang(tree: Growth, run: Sequence[int], score: float, limit: int) -> None:
        """Add a chain below the root, sharing the nodes that are there already."""
        node = ROOT
        for token in run:
            known = next(
                (n for n, parent in enumerate(tree.parents) if parent == node and tree.tokens[n] == token), None
            )
            if known is None:
                if len(tree.tokens) >= limit:
                    return
                known = tree.add(node, token, score)
            node = known

    def _catch_up(self) -> None:
        tokens = self.request.tokens
        for end in range(max(self._read, _GRAM), len(tokens) + 1):
            self._pool.add(tokens[end - _GRAM], tuple(tokens[end - _GRAM + 1 : end]))
        self._read = len(tokens) + 1

    def observe(self, result: StepResult) -> None:
        """Take the target's answers after the window as the next window, and the runs they end into the pool."""
        written = len(result.tokens)
        if result.rows is None or not written:
            return
        draft, usable = result.draft, self._drafter.usable
        # The window is the branch proposed last.
        chain = draft.path_to(len(draft) - 1) if len(draft) else ()
        guesses = [draft.tokens[node] for node in chain]
        answers = [int(result.rows[1 + node][:usable].argmax()) for node in chain]
        for first in range(len(guesses)):
            last = min(first + _GRAM - 2, len(guesses) - 1)
            self._pool.add(guesses[first], (*guesses[first + 1 : last + 1], answers[last]))
        self._learn(result)
        # Guess i stands i + 1 tokens after the old root, and its answer one further on: later than all that was written.
        self._window = answers[max(0, written - 1) :]
        self._catch_up()

    def _learn(self, result: StepResult) -> None:
        rates, draft = self._drafter.rates, result.draft
        node = ROOT
        for token in result.tokens:
            children = draft.children(node)
            for rank, child in enumerate(children):
                rates.note(min(rank, _PER_TOKEN), draft.tokens[child] == token)
            node = next((child for child in children if draft.tokens[child] == token), -2)
            if node == -2:
                break


class LookaheadDrafter(SessionDrafter[LookaheadSession]):
    """Drafts from n-grams that the target made up. `usable`: the target's ids that are tokens."""

    name = "lookahead"
    shares_memory = True

    def __init__(self, usable: int) -> None:
        self.usable = usable
        self.rates = Rates([0.4, 0.2, 0.12, 0.08, 0.06, 0.05, 0.1])

    def open(self, request: Request) -> LookaheadSession:
        return LookaheadSession(self, request)
