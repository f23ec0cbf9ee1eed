"""Token recycling: a matrix of the tokens that the target found likeliest after each token, last time it was asked.

Luo et al. (2408.08696). Every verified row updates it, those of rejected nodes too: they cost a pass and would be lost.
The draft is a tree from the matrix, grown best-first under the budget instead of the paper's fixed template. A child's
score is how often candidates of its rank and probability have come true, learned from each committed pair of tokens.
The first level also holds what the target nearly said in place of the text's last token: often it says that next (as in
LogitSpec, 2507.01449).
The matrix is shared by all requests of one memory (core.request.Request); that of the memory without a name can be kept
on disk: at most `limit` rows of eight ids, under 2 MB.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.core.draft import Draft
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
from forerun.core.step import StepResult
from forerun.core.transcript import Transcript
from forerun.drafters.base import Session, SessionDrafter
from forerun.drafters.rates import hit_rates
from forerun.drafters.rows import leading, verified_rows
from forerun.drafters.tree import grow
from forerun.errors import UsageError

WIDTH = 8
# Rows of a memory with a name, at most; a row takes half a kilobyte.
_NAMED_ROWS = 20_000
# Memories with a name, at most.
_MOST_NAMED = 16
_FORMAT = 1
# Candidates are told apart by rank and by these steps of probability.
_STEPS = (0.02, 0.06, 0.15, 0.3, 0.5, 0.75, 0.92)
# How much of a candidate's probability is believed before anything was seen: half is lost to the context that the matrix does
# not know, and a runner-up comes next more seldom.
_REMEMBERED, _RUNNERS_UP = 0.55, 0.2


class Row(NamedTuple):
    """ids: best first. shares: their probabilities among themselves. kinds: what kind of candidate each is (Ranks)."""

    ids: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()
    kinds: tuple[int, ...] = ()

    @classmethod
    def of(cls, ids: Sequence[int], shares: Sequence[float]) -> Row:
        kinds = tuple(kind(rank, share) for rank, share in enumerate(shares))
        return cls(tuple(ids), tuple(shares), kinds)


def kind(rank: int, share: float) -> int:
    """Candidates are told apart by rank and probability."""
    return rank * (len(_STEPS) + 1) + bisect_right(_STEPS, share)


class Matrix:
    """Token id -> the likeliest next ids, best first, with their probabilities among themselves.

    limit: rows kept; of more, the one updated longest ago goes. vocabulary: names the model whose probabilities these are.
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
        self._rows[token] = Row.of(ids, chances)
        while len(self._rows) > self.limit:
            del self._rows[next(iter(self._rows))]

    def save(self, path: Path) -> None:
        """Bring a file up to date, whole or not at all: rows that others put into it stay, unless this has newer ones.

        Raises OSError, and UsageError for the matrix of another model.
        """
        with locked(path):
            there = Matrix.load(path, limit=self.limit, vocabulary=self.vocabulary)
            for token, row in self._rows.items():
                if token in self._unsaved:
                    there.put(token, row.ids, row.shares)
            there._write(path)
        self._unsaved.clear()

    def _write(self, path: Path) -> None:
        ids = np.full((len(self._rows), WIDTH), -1, dtype=np.int32)
        chances = np.zeros((len(self._rows), WIDTH), dtype=np.float16)
        for at, row in enumerate(self._rows.values()):
            ids[at, : len(row.ids)], chances[at, : len(row.ids)] = row.ids, row.shares
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
    """How often candidates come true, by rank and by probability. share: of the probability, before anything was seen."""

    def __init__(self, share: float) -> None:
        middles = [0.01, 0.04, 0.1, 0.22, 0.4, 0.62, 0.83, 0.96]
        self._rates = hit_rates([share * middle for _ in range(WIDTH) for middle in middles], weight=10.0)

    def score(self, kind: int) -> float:
        return self._rates[kind].value

    def add(self, row: Row, token: int) -> None:
        """A token followed another whose row is `row`."""
        for candidate, kind in zip(row.ids, row.kinds, strict=True):
            self._rates[kind].add(candidate == token)


class Memory:
    """What requests of one memory share: the matrix, and how often its candidates and runners-up come true."""

    def __init__(self, matrix: Matrix) -> None:
        self.matrix = matrix
        self.ranks, self.runners_up = Ranks(_REMEMBERED), Ranks(_RUNNERS_UP)


class RecyclingSession(Session):
    def __init__(self, drafter: RecyclingDrafter, transcript: Transcript) -> None:
        super().__init__(transcript)
        self._drafter = drafter
        self._memory = drafter.memory_of(transcript.request.memory)
        # What the target nearly said in place of the last token, and how long the text was then.
        self._runners_up = Row()
        self._length = 0

    def draft(self, path: Sequence[int], nodes: int) -> Draft:
        """A tree of at most `nodes` nodes."""
        start = path[-1] if path else self.transcript.tokens[-1]
        first = self._children(start)
        if not path and self._length == len(self.transcript.tokens):
            known = {token for token, _, _ in first}
            others = self._scored(self._runners_up, self._memory.runners_up)
            first = sorted([*first, *(one for one in others if one[0] not in known)], key=lambda child: -child[1])
        return grow(
            -1,
            lambda place: first if place < 0 else self._children(place),
            nodes,
            self._drafter.name,
            floor=self._drafter.floor,
        )

    def _children(self, token: int) -> list[tuple[int, float, int]]:
        row = self._memory.matrix.get(token)
        return [] if row is None else self._scored(row, self._memory.ranks)

    def _scored(self, row: Row, ranks: Ranks) -> list[tuple[int, float, int]]:
        found = [
            (candidate, ranks.score(kind), candidate)
            for candidate, kind in zip(row.ids, row.kinds, strict=True)
            if candidate < self._drafter.usable
        ]
        found.sort(key=lambda child: -child[1])
        return found

    def observe(self, result: StepResult) -> None:
        """Learn how the matrix did on what was committed, then put in what the target said."""
        if result.rows is None:
            return
        matrix, ranks = self._memory.matrix, self._memory.ranks
        before = result.input_tokens[-1]
        for token in result.tokens:
            row = matrix.get(before)
            if row is not None:
                ranks.add(row, token)
            before = token
        usable = self._drafter.usable
        for index, token in verified_rows(result):
            ids, weights = leading(result.rows[index][:usable], WIDTH + 1)
            if len(ids):
                matrix.put(token, *_shares(ids[:WIDTH], weights[:WIDTH]))
            if result.tokens and index == result.bonus_row:
                self._memory.runners_up.add(self._runners_up, result.tokens[0])
                others = np.flatnonzero(ids != result.tokens[-1])[:WIDTH]
                self._runners_up = Row.of(*_shares(ids[others], weights[others]))
                self._length = len(self.transcript.tokens)


def _shares(ids: NDArray[np.int64], weights: NDArray[np.float64]) -> tuple[list[int], list[float]]:
    """Ids, and their probabilities among themselves."""
    return ids.tolist(), (weights / weights.sum()).tolist()


class RecyclingDrafter(SessionDrafter[RecyclingSession]):
    """Drafts from the token matrix of a model.

    usable: the target's ids that are tokens. matrix: of the memory without a name; a fresh one by default. path: where it is
    written when the drafter is closed. floor: nodes less likely to be reached are not proposed.
    """

    name = "recycling"
    shares_memory = True

    def __init__(
        self, usable: int, matrix: Matrix | None = None, *, path: Path | None = None, floor: float = 0.03
    ) -> None:
        self.usable = usable
        self.shared = Memory(matrix if matrix is not None else Matrix())
        self.floor = floor
        self._path = path
        self._named: OrderedDict[str, Memory] = OrderedDict()

    def memory_of(self, name: str) -> Memory:
        """The memory of a name, made when it is missing; of too many, the one used longest ago is forgotten."""
        if not name:
            return self.shared
        found = self._named.get(name) or self._named.setdefault(name, Memory(Matrix(limit=_NAMED_ROWS)))
        self._named.move_to_end(name)
        if len(self._named) > _MOST_NAMED:
            self._named.popitem(last=False)
        return found

    def open(self, transcript: Transcript) -> RecyclingSession:
        return RecyclingSession(self, transcript)

    def draft(self, session: RecyclingSession, path: Sequence[int], nodes: int) -> Draft:
        return session.draft(path, nodes)

    def close(self) -> None:
        """Write the matrix where it is to be kept; a disk that is full or read-only is a warning."""
        if self._path is not None and self.shared.matrix.changed:
            keep(self._path, self.shared.matrix.save)
