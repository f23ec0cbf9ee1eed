"""One step's tree of a draft model while it grows: which nodes to continue, what to read for it, what was drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.core.choosing import Prefix, scores, softmax
from forerun.core.draft import EMPTY, ROOT, Draft
from forerun.core.model import KV, Floats, ForwardInput
from forerun.core.noise import Stream
from forerun.core.sampling import Sampling
from forerun.drafters.draft_model import ModelSession
from forerun.drafters.rows import leading
from forerun.drafters.tree import TreeBuilder
from forerun.errors import BackendError

# How many of the likeliest ids are looked at for what nearly won a keyed draw.
_RIVALS = 64

# From the model's row at a node, at the target's width, the text before it and its parameters, and how many ids are tokens.
Annotate = Callable[[Floats, Prefix, Sampling, int], Any]

# AdaEDL's gamma (2410.18351).
_GAMMA = 0.2
# The least probability of acceptance that a draw is given.
_LEAST = 0.02


def draw_scores(q: NDArray[np.float64], ids: NDArray[np.int64]) -> list[float]:
    """Estimates that draws without replacement from `q` are accepted, none of which looks at its own draw.

    The first is the bound of AdaEDL (2410.18351), 1 - sqrt(gamma * entropy); each later one gets the same share of what
    is left. Fewer than `ids` where the earlier draws have taken all the mass.
    """
    likely = q[q > 0.0]
    entropy = float(-(likely * np.log(likely)).sum())
    first = min(1.0, max(_LEAST, 1.0 - math.sqrt(_GAMMA * max(entropy, 0.0))))
    left = 1.0 - np.concatenate([[0.0], np.cumsum(q[ids[:-1]])])
    return [first * (1.0 - first) ** k for k in range(int((left > 1e-12).sum()))]


class ModelTree:
    """One text's tree while it grows. Nodes to be continued are `open`; nothing is left to do when there are none.

    width, threshold, depth, annotate: see `ModelDrafter`. lent: the target's KV, for a model that goes on from it.
    """

    def __init__(
        self,
        session: ModelSession,
        path: Sequence[int],
        nodes: int,
        *,
        width: int,
        threshold: float,
        depth: int,
        lent: KV | None,
        annotate: Annotate | None,
    ) -> None:
        self.session = session
        self.path = tuple(path)
        self.tree = TreeBuilder(nodes)
        self.lent = lent
        self._width, self._threshold, self._annotate = width, threshold, annotate
        self._continued: set[int] = set()
        start = session.tail(self.path, lent) if nodes > 0 else None
        self.start = start or ()
        # The last token of a path is never read, so a text that fills the context can still be continued by one.
        room = session.source.model.info.context - len(session.reading.tokens) - len(self.start)
        self._levels = min(room, depth - 1) if depth else room
        self.open = [ROOT] if room >= 0 and start is not None else []
        self._fed: list[int] = []
        self._anchor = ROOT
        self._likely = ROOT
        self._ahead = EMPTY

    @property
    def draws(self) -> bool:
        """Whether any node was drawn with a q."""
        return self.tree.draft("").draws

    def draft(self, source: str) -> Draft:
        """What has been drawn."""
        return self.tree.draft(source)

    def wants(self, most: int) -> tuple[tuple[int, ...], int]:
        """The path after which a stage should propose, and how many tokens of it could be of use."""
        tree = self.tree
        self._likely = max(self.open, key=lambda node: 1.0 if node == ROOT else tree.reach[node])
        depth = 0 if self._likely == ROOT else tree.depths[self._likely]
        levels = min(self._levels, tree.nodes - 1) - depth
        return self._tokens_to(self._likely), max(0, min(most, levels))

    def input(self, ahead: Draft = EMPTY) -> ForwardInput:
        """The next pass: read up to the nodes' deepest common ancestor, what lies between it and them, and `ahead`.

        ahead: what a stage proposed after the likeliest node.
        """
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
        self._ahead, start = ahead, number[self._likely] if len(ahead) else ROOT
        draft = Draft(
            tuple(map(self.session.reading.token, (*(self.tree.tokens[node] for node in self._fed), *ahead.tokens))),
            tuple(number[self.tree.parents[node]] for node in self._fed)
            + tuple(start if parent == ROOT else len(self._fed) + parent for parent in ahead.parents),
        )
        kv, unread = self.session.seek(self._reads(self._anchor), self.lent)
        return ForwardInput(kv, unread, draft)

    def take(self, rows: Floats, states: Floats | None = None) -> list[int]:
        """Continue the open nodes with their logits `[1 + nodes, vocab]`; the nodes of the pass to be kept in the KV.

        states: what the head saw, `[at least 1 + nodes, width]`, where it is needed to score more ids than the head has.
        """
        if states is not None:
            states = states[len(states) - len(rows) :]
        row = {self._anchor: 0} | {node: 1 + i for i, node in enumerate(self._fed)}
        staged = {self._likely: ROOT} if len(self._ahead) else {}
        waiting = list(self.open)
        while waiting:
            node = waiting.pop(0)
            first = len(self.tree.tokens)
            self._continue(node, rows[row[node]], None if states is None else states[row[node]])
            if node in staged:
                read = {self._ahead.tokens[child]: child for child in self._ahead.children(staged[node])}
                for new in range(first, len(self.tree.tokens)):
                    child = read.get(self.tree.tokens[new])
                    if child is not None and new in self.tree.kept() and self._worth(new):
                        staged[new], row[new] = child, 1 + len(self._fed) + child
                        waiting.append(new)
        kept = self.tree.kept()
        self.open = [node for node in kept if node not in self._continued and self._worth(node)]
        keep = [node for node in self._likeliest(kept) if node in row and node != self._anchor]
        self.session.read_to(self._reads(keep[-1] if keep else self._anchor))
        return [row[node] - 1 for node in keep]

    def _worth(self, node: int) -> bool:
        """Whether to continue a node. Looks only at nodes that stay in the draft whatever is found below them."""
        tree = self.tree
        if tree.reach[node] < self._threshold or tree.depths[node] > self._levels:
            return False
        # Its child must be able to enter the draft: there is room, or a node that is reached less often.
        return len(tree.tokens) < tree.nodes or tree.reach[node] > min(tree.reach[kept] for kept in tree.kept())

    def _likeliest(self, kept: Sequence[int]) -> list[int]:
        """The path that leads to the best open node, or to the likeliest leaf: what the KV should hold next."""
        if self.open:
            return self.tree.path(max(self.open, key=lambda node: self.tree.reach[node]))
        return self.tree.path(max(kept, key=lambda node: (self.tree.depths[node], self.tree.reach[node]), default=ROOT))

    def _tokens_to(self, node: int) -> tuple[int, ...]:
        return (*self.path, *(self.tree.tokens[step] for step in self.tree.path(node)))

    def _reads(self, node: int) -> tuple[int, ...]:
        """What the model reads after the text down to a node, in its own ids."""
        return (*self.start, *(self.session.reading.token(self.tree.tokens[step]) for step in self.tree.path(node)))

    def _continue(self, node: int, row: Floats, state: Floats | None) -> None:
        """Draw the children of a node from the model's row there."""
        self._continued.add(node)
        source, transcript = self.session.source, self.session.transcript
        sampling = transcript.request.sampling
        prefix = transcript.prefix(self._tokens_to(node))
        wide = source.widen(row)
        if state is not None and self.session.widened is not None:
            self.session.widened.fill(wide, state)
        try:
            kept = scores(wide, prefix, sampling, source.usable)
        except BackendError:
            return  # Logits that are not numbers: nothing is proposed, and the target decodes plainly.
        if not math.isfinite(float(np.max(kept))):
            return
        room = min(self._width, self.tree.nodes)
        stream = transcript.drafting_stream(prefix.path, source.noise_id)
        q: NDArray[np.float64] | None = None
        if sampling.greedy:
            ids, likely = _best(kept, room)
        elif transcript.keyed:
            ids, likely = _keyed(stream, kept, prefix.length, room)
        else:
            ids = stream.order(kept, prefix.length, room)
            q = softmax(kept)
            likely = draw_scores(q, ids)
        note = None if self._annotate is None else self._annotate(wide, prefix, sampling, source.usable)
        for token, score in zip(ids[:room].tolist(), likely, strict=False):
            self.tree.add(node, token, score, q, note)


def _keyed(stream: Stream, kept: Floats, position: int, count: int) -> tuple[NDArray[np.int64], list[float]]:
    """The winner of the race and what nearly won it, with the softmax of score + noise: how clearly each did.

    Only the winner must be the race's: under keyed verification anything may stand beside it.
    """
    winner = stream.race(kept, position)
    likely, _ = leading(kept, _RIVALS)
    ids = np.concatenate([[winner], likely[likely != winner]])
    sums = kept[ids].astype(np.float64) + stream.gumbel(position, ids, stream.coarse(position, len(kept))[ids])
    order = np.argsort(-sums, kind="stable")
    likely_first = softmax(sums[order])
    return ids[order[:count]], likely_first[:count].tolist()


def _best(kept: Floats, count: int) -> tuple[NDArray[np.int64], list[float]]:
    """The ids of the `count` highest scores, ties to the lower id, and their probabilities."""
    ids, weights = leading(kept, count)
    total = float(np.exp(kept - kept[ids[0]]).sum())
    return ids, (weights / total).tolist()
