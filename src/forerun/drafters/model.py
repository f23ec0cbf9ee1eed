"""A language model as a drafter: a chain or a small tree per round, grown best-first (Leviathan et al. 2211.17192).

It draws with the request's own sampling parameters. Under a rule that shares noise it draws with the target's noise at
the same positions, so it proposes what the target would say if the two models agreed (2408.07978); otherwise each
node's q is the law that it was really drawn from, and siblings are drawn without replacement by the same race.

Its KV follows the commits without being told of them: it knows which tokens the KV has read, cuts it back to what they
share with the text that is wanted now, and reads the rest. Each pass hangs the tree off the deepest node that all the
nodes to be continued share, so a chain costs one row a pass. There are as many passes as the tree has levels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from forerun.core.draft import EMPTY, ROOT, Draft
from forerun.core.noise import Domain, Stream, derive
from forerun.core.protocols import DraftSession, Feed, Floats, Model, ModelInfo
from forerun.core.request import Request
from forerun.core.sampling import belief, scores, softmax
from forerun.drafters.base import Session, SessionDrafter
from forerun.drafters.growth import Growth
from forerun.errors import BackendError

# How many runners-up the estimate of a keyed draw's agreement looks at.
_RIVALS = 8


# AdaEDL's gamma, and the least chance that a draw is given.
_GAMMA, _LEAST = 0.2, 0.02


def ratio_scores(law: NDArray[np.float64], ids: NDArray[np.int64]) -> list[float]:
    """Guesses that draws without replacement from `law` are accepted, none of which looks at its own draw.

    The first is the bound of AdaEDL (2410.18351), 1 - sqrt(gamma * entropy); each later one gets the same share of what
    is left. Fewer than `ids` where the earlier draws have taken all the mass.
    """
    likely = law[law > 0.0]
    entropy = float(-(likely * np.log(likely)).sum())
    first = min(1.0, max(_LEAST, 1.0 - math.sqrt(_GAMMA * max(entropy, 0.0))))
    left = 1.0 - np.concatenate([[0.0], np.cumsum(law[ids[:-1]])])
    return [first * (1.0 - first) ** k for k in range(int((left > 1e-12).sum()))]


def noise_after(request: Request, path: Sequence[int]) -> Stream:
    """What the tokens after the request's and `path` are drawn with.

    The ratio rules need draws below different nodes to be independent, and new ones each round: they may look at a
    branch, or a draft may have been cut, because of what was drawn in another.
    """
    if request.shares_noise:
        return request.token_stream
    return request.noise.stream(Domain.DRAFT, derive(len(request.tokens), *path))


class Plan:
    """One session's tree while it grows. Nodes to be continued are `open`; nothing is left to do when there are none."""

    def __init__(self, session: ModelSession, path: Sequence[int], budget: int) -> None:
        drafter = session.drafter
        self.session = session
        self.path = tuple(path)
        self.tree = Growth(budget)
        self._continued: set[int] = set()
        # The last token of a path is never read, so a text that fills the context can still be continued by one.
        self._room = drafter.model.info.context - len(session.request.tokens) - len(self.path)
        self._levels = min(self._room, drafter.depth - 1) if drafter.depth else self._room
        self.open = [ROOT] if budget > 0 and self._room >= 0 and session.readable(self.path) else []
        self._fed: list[int] = []
        self._anchor = ROOT

    def feed(self) -> Feed:
        """The next pass: read up to the nodes' deepest common ancestor, and what lies between it and them."""
        paths = [self.tree.path(node) for node in self.open]
        shared = paths[0]
        for path in paths[1:]:
            length = 0
            while length < min(len(shared), len(path)) and shared[length] == path[length]:
                length += 1
            shared = shared[:length]
        self._anchor = shared[-1] if shared else ROOT
        self._fed = sorted({node for path in paths for node in path[len(shared) :]})
        number = {self._anchor: ROOT} | {node: i for i, node in enumerate(self._fed)}
        draft = Draft(
            tuple(self.tree.tokens[node] for node in self._fed),
            tuple(number[self.tree.parents[node]] for node in self._fed),
        )
        kv, forced = self.session.seek(self._tokens_to(self._anchor))
        return Feed(kv, forced, draft)

    def take(self, rows: Floats) -> list[int]:
        """Continue the open nodes with their logits `[1 + nodes, vocab]`; the nodes of the pass to be kept in the KV."""
        row = {self._anchor: 0} | {node: 1 + i for i, node in enumerate(self._fed)}
        for node in self.open:
            self._continue(node, rows[row[node]])
        kept = self.tree.kept()
        self.open = [node for node in kept if node not in self._continued and self._worth(node)]
        keep = [node for node in self._likeliest(kept) if node in row and node != self._anchor]
        tokens = [self.tree.tokens[node] for node in self.tree.path(self._anchor) + keep]
        self.session.read_to([*self.path, *tokens])
        return [row[node] - 1 for node in keep]

    def _worth(self, node: int) -> bool:
        """Whether to continue a node. Looks only at nodes that stay in the draft whatever is found below them."""
        tree = self.tree
        if tree.reach[node] < self.session.drafter.threshold or tree.depths[node] > self._levels:
            return False
        # Its child must be able to enter the draft: there is room, or a node that is reached less often.
        return len(tree.tokens) < tree.budget or tree.reach[node] > min(tree.reach[kept] for kept in tree.kept())

    def _likeliest(self, kept: Sequence[int]) -> list[int]:
        """The path that leads to the best open node, or to the likeliest leaf: what the KV should hold next."""
        if self.open:
            return self.tree.path(max(self.open, key=lambda node: self.tree.reach[node]))
        return self.tree.path(max(kept, key=lambda node: (self.tree.depths[node], self.tree.reach[node]), default=ROOT))

    def _tokens_to(self, node: int) -> tuple[int, ...]:
        return (*self.path, *(self.tree.tokens[step] for step in self.tree.path(node)))

    def _continue(self, node: int, row: Floats) -> None:
        self._continued.add(node)
        request, drafter = self.session.request, self.session.drafter
        prefix = request.prefix(self._tokens_to(node))
        wide = drafter.widen(row)
        try:
            kept = scores(wide, prefix, request.sampling, drafter.usable)
        except BackendError:
            return  # A broken drafter has nothing to say; the target is what counts.
        if not math.isfinite(float(np.max(kept))):
            return
        room = min(drafter.width, self.tree.budget)
        q: NDArray[np.float64] | None = None
        if request.sampling.greedy:
            ids, sure = _best(kept, room)
        elif request.shares_noise:
            stream = noise_after(request, prefix.path)
            ids = stream.order(kept, prefix.length, max(room, _RIVALS))
            coarse = stream.coarse(prefix.length, len(kept))
            sums = kept[ids].astype(np.float64) + stream.gumbel(prefix.length, ids, coarse[ids])
            sure = softmax(sums).tolist()
        else:
            ids = noise_after(request, prefix.path).order(kept, prefix.length, room)
            q = softmax(kept)
            sure = ratio_scores(q, ids)
        seen = belief(wide, prefix, request.sampling, drafter.usable) if request.wants_beliefs else None
        for token, score in zip(ids[:room].tolist(), sure, strict=False):
            self.tree.add(node, token, score, q, seen)


def _best(kept: Floats, count: int) -> tuple[NDArray[np.int64], list[float]]:
    """The ids of the `count` highest finite scores, ties to the lower id, and their probabilities."""
    top = float(kept.max())
    weights = np.exp(kept - np.float32(top))
    if count == 1:
        ids = np.array([np.argmax(kept)])
    else:
        edge = np.partition(kept, max(len(kept) - count, 0))[max(len(kept) - count, 0)]
        ids = np.flatnonzero(kept >= max(edge, np.float32(np.finfo(np.float32).min)))
        ids = ids[np.argsort(-kept[ids], kind="stable")][:count]
    return ids, (weights[ids] / weights.sum()).astype(np.float64).tolist()


class ModelSession(Session):
    """A draft model's KV of one request, and which tokens it has read."""

    def __init__(self, drafter: ModelDrafter, request: Request) -> None:
        super().__init__(request)
        self.drafter = drafter
        self._kv = drafter.model.open()
        self._read: list[int] = []
        self._agreed = 0  # how many of them are known to be the request's: its tokens never change
        self._foreign = 0  # how many of the request's tokens are known to be in the drafter's vocabulary
        self._closed = False

    def propose_after(self, path: Sequence[int], budget: int) -> Draft:
        return self.drafter.propose_after([self], [path], [budget])[0]

    def readable(self, path: Sequence[int]) -> bool:
        """Whether the drafter has a row for every token of the text."""
        rows, tokens = self.drafter.model.info.vocab_size, self.request.tokens
        while self._foreign < len(tokens) and tokens[self._foreign] < rows:
            self._foreign += 1
        return not self._closed and self._foreign == len(tokens) and all(token < rows for token in path)

    def seek(self, path: Sequence[int]) -> tuple[Any, tuple[int, ...]]:
        """Cut the KV to what it shares with the request's tokens and `path`; (KV, the tokens to read, at least one)."""
        tokens = self.request.tokens
        del self._read[self._kv.length :]
        known, last = len(tokens), len(tokens) + len(path) - 1
        shared = min(self._agreed, len(self._read), last)
        while shared < min(len(self._read), last):
            if self._read[shared] != (tokens[shared] if shared < known else path[shared - known]):
                break
            shared += 1
        self._agreed = min(shared, known)
        if shared < len(self._read):
            self._kv.truncate(shared)
            del self._read[shared:]
        return self._kv, (*tokens[shared:], *path[max(0, shared - known) :])

    def read_to(self, path: Sequence[int]) -> None:
        """Note that the KV has now read the request's tokens and `path`."""
        self._read += [*self.request.tokens, *path][len(self._read) :]

    def chunk(self, path: Sequence[int], size: int) -> Feed | None:
        """A pass that reads `size` tokens of a long text; None when what is left fits the pass that drafts."""
        kv, forced = self.seek(path)
        if len(forced) <= size:
            return None
        self._read += forced[:size]
        return Feed(kv, forced[:size], logits=False)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._kv.close()


class ModelDrafter(SessionDrafter[ModelSession]):
    """Drafts with a smaller, older or more strongly quantised model of the target's vocabulary.

    target: what it drafts for. Padded vocabulary sizes may differ: ids that either side does not have are never
        proposed, and q has the target's width.
    width: siblings per node; 1 is a chain.
    threshold: a node whose estimated chance to be reached is below it is kept but not continued.
    depth: most levels of the tree, so most passes (0: the budget decides).
    chunk: most tokens of a text that one pass reads.
    """

    def __init__(
        self,
        model: Model,
        target: ModelInfo,
        *,
        width: int = 1,
        threshold: float = 0.0,
        depth: int = 0,
        chunk: int = 256,
        name: str = "",
    ) -> None:
        self.model = model
        self.name = name or f"model:{model.info.name}"
        self.vocab_size = target.vocab_size
        self.usable = min(target.usable_vocab, model.info.usable_vocab)
        self.width = width if model.info.tree else 1
        self.threshold = threshold
        self.depth = depth
        self._chunk = chunk

    def open(self, request: Request) -> ModelSession:
        return ModelSession(self, request)

    def propose_after(
        self, sessions: Sequence[DraftSession], paths: Sequence[Sequence[int]], budgets: Sequence[int]
    ) -> list[Draft]:
        """One draft per session, all sessions in the same passes. Raises BackendError when a pass fails."""
        plans = [
            Plan(session, path, budget)
            for session, path, budget in zip(cast(Sequence[ModelSession], sessions), paths, budgets, strict=True)
        ]
        live = [plan for plan in plans if plan.open]
        self._catch_up(live)
        while live:
            with self.model.forward([plan.feed() for plan in live]) as scored:
                for index, plan in enumerate(live):
                    scored.commit(index, plan.take(scored.logits(index)))
            live = [plan for plan in live if plan.open]
        return [plan.tree.draft(self.name) if len(plan.tree.tokens) else EMPTY for plan in plans]

    def widen(self, row: Floats) -> Floats:
        """A drafter's row at the target's width."""
        if len(row) == self.vocab_size:
            return row
        wide = np.full(self.vocab_size, -np.inf, dtype=np.float32)
        wide[: min(len(row), self.vocab_size)] = row[: self.vocab_size]
        return wide

    def _catch_up(self, plans: Sequence[Plan]) -> None:
        """Read long texts a chunk at a time, all sessions in the same passes."""
        waiting = list(plans)
        while waiting:
            chunks = [(plan, plan.session.chunk(plan.path, self._chunk)) for plan in waiting]
            waiting = [plan for plan, feed in chunks if feed is not None]
            if waiting:
                feeds = [feed for _, feed in chunks if feed is not None]
                with self.model.forward(feeds) as scored:
                    for index in range(len(feeds)):
                        scored.commit(index, ())

    def close(self) -> None:
        self.model.close()
