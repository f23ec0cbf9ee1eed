"""One round's tree of a draft model while it grows: which nodes to continue, what to read for it, what was drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forerun.core.draft import EMPTY, ROOT, Draft
from forerun.core.noise import Domain, Stream, derive
from forerun.core.protocols import Floats, ForwardInput
from forerun.core.request import Request
from forerun.core.sampling import belief, scores, softmax
from forerun.drafters.growth import Growth
from forerun.drafters.rows import leading
from forerun.errors import BackendError

if TYPE_CHECKING:
    from forerun.drafters.model import ModelSession

# How many of the likeliest ids are looked at for what nearly won a keyed draw.
_RIVALS = 64


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
        start = session.tail(self.path)
        self.start = start or ()
        # The last token of a path is never read, so a text that fills the context can still be continued by one.
        self._room = drafter.model.info.context - len(session.reading.tokens) - len(self.start)
        self._levels = min(self._room, drafter.depth - 1) if drafter.depth else self._room
        self.open = [ROOT] if budget > 0 and self._room >= 0 and start is not None else []
        self._fed: list[int] = []
        self._anchor = ROOT
        self._likely = ROOT
        self._ahead = EMPTY

    def wants(self, most: int) -> tuple[tuple[int, ...], int]:
        """The path after which a helper should propose, and how many tokens of it could be of use."""
        tree = self.tree
        self._likely = max(self.open, key=lambda node: 1.0 if node == ROOT else tree.reach[node])
        depth = 0 if self._likely == ROOT else tree.depths[self._likely]
        levels = min(self._levels, tree.budget - 1) - depth
        return self._tokens_to(self._likely), max(0, min(most, levels))

    def feed(self, ahead: Draft = EMPTY) -> ForwardInput:
        """The next pass: read up to the nodes' deepest common ancestor, what lies between it and them, and `ahead`.

        ahead: what a helper proposed after the likeliest node.
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
        kv, input_tokens = self.session.seek(self._reads(self._anchor))
        return ForwardInput(kv, input_tokens, draft)

    def take(self, rows: Floats, states: Floats | None = None) -> list[int]:
        """Continue the open nodes with their logits `[1 + nodes, vocab]`; the nodes of the pass to be kept in the KV.

        states: what the head saw, `[at least 1 + nodes, width]`, where it is needed to score more ids than the head has.
        """
        if states is not None:
            states = states[len(states) - len(rows) :]
        row = {self._anchor: 0} | {node: 1 + i for i, node in enumerate(self._fed)}
        helped = {self._likely: ROOT} if len(self._ahead) else {}
        waiting = list(self.open)
        while waiting:
            node = waiting.pop(0)
            first = len(self.tree.tokens)
            self._continue(node, rows[row[node]], None if states is None else states[row[node]])
            if node in helped:
                read = {self._ahead.tokens[child]: child for child in self._ahead.children(helped[node])}
                for new in range(first, len(self.tree.tokens)):
                    child = read.get(self.tree.tokens[new])
                    if child is not None and new in self.tree.kept() and self._worth(new):
                        helped[new], row[new] = child, 1 + len(self._fed) + child
                        waiting.append(new)
        kept = self.tree.kept()
        self.open = [node for node in kept if node not in self._continued and self._worth(node)]
        keep = [node for node in self._likeliest(kept) if node in row and node != self._anchor]
        self.session.read_to(self._reads(keep[-1] if keep else self._anchor))
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

    def _reads(self, node: int) -> tuple[int, ...]:
        """What the model reads after the text down to a node, in its own ids."""
        return (*self.start, *(self.session.reading.token(self.tree.tokens[step]) for step in self.tree.path(node)))

    def _continue(self, node: int, row: Floats, state: Floats | None) -> None:
        self._continued.add(node)
        request, drafter = self.session.request, self.session.drafter
        prefix = request.prefix(self._tokens_to(node))
        wide = drafter.widen(row)
        if state is not None and self.session.widened is not None:
            self.session.widened.fill(wide, state)
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
            ids, sure = _keyed(noise_after(request, prefix.path), kept, prefix.length, room)
        else:
            ids = noise_after(request, prefix.path).order(kept, prefix.length, room)
            q = softmax(kept)
            sure = ratio_scores(q, ids)
        seen = belief(wide, prefix, request.sampling, drafter.usable) if request.wants_beliefs else None
        for token, score in zip(ids[:room].tolist(), sure, strict=False):
            self.tree.add(node, token, score, q, seen)


def _keyed(stream: Stream, kept: Floats, position: int, count: int) -> tuple[NDArray[np.int64], list[float]]:
    """The winner of the race and what nearly won it, with the softmax of score + noise: how clearly each did.

    Only the winner must be the race's: under a rule that shares noise anything may stand beside it.
    """
    winner = stream.race(kept, position)
    likely, _ = leading(kept, _RIVALS)
    ids = np.concatenate([[winner], likely[likely != winner]])
    sums = kept[ids].astype(np.float64) + stream.gumbel(position, ids, stream.coarse(position, len(kept))[ids])
    order = np.argsort(-sums, kind="stable")
    sure = softmax(sums[order])
    return ids[order[:count]], sure[:count].tolist()


def _best(kept: Floats, count: int) -> tuple[NDArray[np.int64], list[float]]:
    """The ids of the `count` highest scores, ties to the lower id, and their probabilities."""
    ids, weights = leading(kept, count)
    total = float(np.exp(kept - kept[ids[0]]).sum())
    return ids, (weights / total).tolist()
