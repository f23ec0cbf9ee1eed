"""Token recycling: a matrix of the tokens that the target found likeliest after each token, last time it was asked.

Luo et al. (2408.08696). Every verified row updates it, those of rejected nodes too: they cost a pass and would be lost.
The draft is a tree from the matrix, grown best-first under the budget instead of the paper's fixed template. A child's
score is how often candidates of its rank and probability have come true, learned from each committed pair of tokens.
The matrix is shared by all requests and can be kept on disk: at most `limit` rows of eight ids, under 2 MB.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.core.draft import EMPTY, Draft
from forerun.core.files import (
    DamagedError,
    default_home,
    keep,
    locked,
    read_arrays,
    set_aside,
    within,
    write_arrays,
)
from forerun.core.request import Request
from forerun.core.step import StepResult
from forerun.drafters.base import Session, SessionDrafter
from forerun.drafters.growth import grow
from forerun.drafters.rates import Rates
from forerun.drafters.rows import leading, read_nodes
from forerun.errors import UsageError

WIDTH = 8
_FORMAT = 1
# Candidates are told apart by rank and by these steps of probability.
_STEPS = (0.02, 0.06, 0.15, 0.3, 0.5, 0.75, 0.92)

Row = tuple[tuple[int, ...], tuple[float, ...]]


class Matrix:
    """Token id -> the likeliest next ids, best first, with their probabilities among themselves.

    limit: rows kept; of more, the one updated longest ago goes. vocabulary: names the model whose opinions these are.
    """

    def __init__(self, *, limit: int = 40_000, vocabulary: str = "") -> None:
        if limit < 1:
            raise UsageError(f"a token matrix of {limit} rows holds nothing; give at least 1.")
        self.limit, self.vocabulary = limit, vocabulary
        self._rows: dict[int, Row] = {}
        self._unsaved: set[int] = set()

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def changed(self) -> bool:
        """Whether there are rows that no file has yet."""
        return bool(self._unsaved)

    def get(self, token: int) -> Row | None:
        return self._rows.get(token)

    def put(self, token: int, ids: Sequence[int], chances: Sequence[float]) -> None:
        """Replace a token's row."""
        self._unsaved.add(token)
        self._rows.pop(token, None)
        self._rows[token] = (tuple(ids), tuple(chances))
        if len(self._rows) > self.limit:
            del self._rows[next(iter(self._rows))]

    def save(self, path: Path) -> None:
        """Bring a file up to date, whole or not at all: rows that others put into it stay, unless this has newer ones.

        Raises OSError, and UsageError for the matrix of another model.
        """
        with locked(path):
            there = Matrix.load(path, limit=self.limit, vocabulary=self.vocabulary)
            for token, (row, shares) in self._rows.items():
                if token in self._unsaved:
                    there.put(token, row, shares)
            there._write(path)
        self._unsaved.clear()

    def _write(self, path: Path) -> None:
        ids = np.full((len(self._rows), WIDTH), -1, dtype=np.int32)
        chances = np.zeros((len(self._rows), WIDTH), dtype=np.float16)
        for at, (row, shares) in enumerate(self._rows.values()):
            ids[at, : len(row)], chances[at, : len(row)] = row, shares
        tokens = np.fromiter(self._rows, dtype=np.int32, count=len(self._rows))
        head = {"format": _FORMAT, "vocabulary": self.vocabulary}
        write_arrays(path, head, tokens=tokens, ids=ids, chances=chances)

    @classmethod
    def load(cls, path: Path, *, limit: int = 40_000, vocabulary: str = "") -> Matrix:
        """Read what `save` wrote; empty where there is no file. A damaged file of the cache is set aside with a warning.

        Raises UsageError for the matrix of another model, and elsewhere for a file that is none.
        """
        matrix = cls(limit=limit, vocabulary=vocabulary)
        try:
            head, tokens, ids, chances = _read(path)
        except FileNotFoundError:
            return matrix
        except (OSError, DamagedError) as error:
            if not within(path, default_home()):
                raise UsageError(f"{path} is no token matrix of forerun ({error}); name another file.") from error
            set_aside(path, error)
            return matrix
        if vocabulary and head["vocabulary"] and head["vocabulary"] != vocabulary:
            raise UsageError(
                f"the token matrix in {path} is of {head['vocabulary']}, not of {vocabulary}; give another file."
            )
        matrix.vocabulary = vocabulary or head["vocabulary"]
        for token, row, shares in zip(tokens.tolist(), ids.tolist(), chances.tolist(), strict=True):
            known = sum(i >= 0 for i in row)
            matrix.put(token, row[:known], shares[:known])
        matrix._unsaved.clear()
        return matrix


def _read(path: Path) -> tuple[dict[str, Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Everything in a file. Raises OSError, and DamagedError when anything in it is not as `save` writes it."""
    head, (tokens, ids, chances) = read_arrays(path, "tokens", "ids", "chances")
    if head.get("format") != _FORMAT or not isinstance(head.get("vocabulary"), str):
        raise DamagedError("not a token matrix of this version")
    if tokens.dtype != np.int32 or ids.dtype != np.int32 or chances.dtype != np.float16 or tokens.ndim != 1:
        raise DamagedError("its types are wrong")
    if ids.shape != (len(tokens), WIDTH) or chances.shape != ids.shape:
        raise DamagedError("its sizes do not match")
    if tokens.min(initial=0) < 0 or ids.min(initial=0) < -1 or not np.isfinite(chances).all():
        raise DamagedError("its values are out of range")
    return head, tokens, ids, chances


class Ranks:
    """How often candidates come true, by rank and by the probability that the matrix remembers."""

    def __init__(self) -> None:
        middles = [0.01, 0.04, 0.1, 0.22, 0.4, 0.62, 0.83, 0.96]
        # Prior: the remembered probability, of which half is lost to the context that the matrix does not know.
        self._rates = Rates([0.55 * middle for _ in range(WIDTH) for middle in middles], weight=10.0)

    @staticmethod
    def kind(rank: int, chance: float) -> int:
        return rank * (len(_STEPS) + 1) + bisect_right(_STEPS, chance)

    def score(self, rank: int, chance: float) -> float:
        return self._rates[self.kind(rank, chance)]

    def note(self, row: Row, token: int) -> None:
        """A token followed another whose row is `row`."""
        for rank, (candidate, chance) in enumerate(zip(*row, strict=True)):
            self._rates.note(self.kind(rank, chance), candidate == token)


class RecyclingSession(Session):
    def __init__(self, drafter: RecyclingDrafter, request: Request) -> None:
        super().__init__(request)
        self._drafter = drafter

    def propose_after(self, path: Sequence[int], budget: int) -> Draft:
        if budget <= 0:
            return EMPTY
        root = path[-1] if path else self.request.tokens[-1]
        return grow(root, self._children, budget, "recycling", floor=self._drafter.floor)

    def _children(self, token: int) -> list[tuple[int, float, int]]:
        row = self._drafter.matrix.get(token)
        if row is None:
            return []
        score, usable = self._drafter.ranks.score, self._drafter.usable
        found = [
            (candidate, score(rank, chance), candidate)
            for rank, (candidate, chance) in enumerate(zip(*row, strict=True))
            if candidate < usable
        ]
        found.sort(key=lambda child: -child[1])
        return found

    def observe(self, result: StepResult) -> None:
        """Learn how the matrix did on what was committed, then put in what the target said."""
        if result.rows is None:
            return
        matrix, ranks = self._drafter.matrix, self._drafter.ranks
        before = result.input_tokens[-1]
        for token in result.tokens:
            row = matrix.get(before)
            if row is not None:
                ranks.note(row, token)
            before = token
        usable = self._drafter.usable
        for index, token in read_nodes(result):
            ids, weights = leading(result.rows[index][:usable], WIDTH)
            if len(ids):
                matrix.put(token, ids.tolist(), (weights / weights.sum()).tolist())


class RecyclingDrafter(SessionDrafter[RecyclingSession]):
    """Drafts from the token matrix of a model.

    usable: the target's ids that are tokens. matrix: shared memory; a fresh one by default. path: where it is written
    when the drafter is closed. floor: nodes less likely to be reached are not proposed.
    """

    name = "recycling"
    shares_memory = True

    def __init__(
        self, usable: int, matrix: Matrix | None = None, *, path: Path | None = None, floor: float = 0.03
    ) -> None:
        self.usable = usable
        self.matrix = matrix if matrix is not None else Matrix()
        self.ranks = Ranks()
        self.floor = floor
        self._path = path

    def open(self, request: Request) -> RecyclingSession:
        return RecyclingSession(self, request)

    def close(self) -> None:
        """Write the matrix where it is to be kept; a disk that is full or read-only is a warning."""
        if self._path is not None and self.matrix.changed:
            keep(self._path, self.matrix.save)
