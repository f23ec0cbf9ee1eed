"""Which nodes of the drafts are verified: those that are expected to earn more than they cost.

With E expected tokens of a pass of so many rows, T(rows) its cost and D the seconds spent on drafting, nodes are taken
best-first by the probability of being reached, over all drafts at once, and the pass is cut where E / (T + D) is largest; no
nodes is plain decoding.

**Drawn nodes.** A rule that uses q is exact only if it is not told which drawn tokens to look at by the tokens themselves.
The condition:

    (*)  Nodes are taken one after the other, a node after its parent and after the siblings drawn before it. Whether one
         more is taken, and which, is decided by the tokens of nodes that came before it and by things that do not depend
         on drawn tokens at all. A node that was taken stays. Siblings drawn with replacement are taken together.

Why it is enough. Let L(V) be the distribution of the text that a rule writes (followed by plain decoding) when it is shown the
tree V of drawn tokens. Then one more node changes nothing on average: if z is the next sibling below a node u of V, drawn
from q (without the siblings before it), then

    (1)  L(V) = sum over t of q(t) L(V with z = t).

*Rejection* comes to z when the siblings before it were refused, with some distribution p to be emitted at u. Without z it
draws from p. With z it emits t with min(q(t), p(t)), and goes on from there as plain decoding does, or else draws from
norm((p - q)+): together p.
*Traversal* comes to z when the siblings before it were deleted, u standing with weight w and distribution p. Without z, the
path to u is accepted with w, and then v follows with p(v). With z, the path through v is accepted with min(q(v), w p(v));
of the rest, 1 - w + Z with Z = sum (w p - q)+, the path to u is accepted with Z / (1 - w + Z), and v follows with
(w p - q)+(v) / Z: together w p(v) again. So u is refused as often as without z, and what is tested after that does not
know of z.
*Block* is traversal on a chain. *K-SEQ* is rejection, but that its tests depend on the number of siblings drawn with
replacement: (1) holds for all of them at once, which is how they are taken.

So L(V) is a martingale as nodes are taken by (*), whose tokens are random until then, and stops at a time which does not look
ahead; a draft is finite. Hence its mean at the end is what it is for the empty tree: plain decoding. Nodes that were looked
at but are not shown (too deep for the text, not a first child where the target takes chains) are things that V does not
depend on, as long as that was clear before.

What this forbids. Cutting at the best place of all: how likely a node below z is to be reached depends on z's token, so z
would be kept or not by its own value (with q = p and more certainty after even tokens, an even one came out with probability
.74 instead of .50). Cutting by the time that drafting took: how far a tree was grown depends on what was drawn. Putting
nodes into another order than the one in which a drafter kept the best of them: a node that was left out for what was found
below z would be missing before z. So:

- All that cut a drawn draft keep a start of one order, `Draft.best_first`, which goes by what a drafter says of a node
  before it is drawn (`Draft.scores`). The place of a node in it follows from nodes that come before.
- `cut_while_drawing` goes through that order and decides about each node before its token is looked at: by its calibrated
  probability, the nodes taken so far, and a cost that was known before anything was drawn.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence

from forerun.core.draft import ROOT, Draft

# Seconds of a pass by its rows, drafting included.
Cost = Callable[[int], float]
Node = tuple[int, int, float]  # draft, node, probability of being reached

# How many nodes like the next one are looked ahead to, where a row alone may not pay but several do.
_AHEAD = 8


def trim(
    drafts: Sequence[Draft], reach: Sequence[Sequence[float]], rows: int, cost: Cost, margin: float
) -> list[Draft]:
    """The part of each draft that is worth being verified.

    reach: per draft and node, the probability that it is reached. rows: of the pass without drafts; each draft's text earns
    one token anyway. cost: where any node was drawn, it must not depend on how drafting went. margin: how many times better
    than plain decoding's the rate must be.
    """
    cut = cut_while_drawing if any(draft.draws for draft in drafts) else cut_at_best
    kept: list[list[int]] = [[] for _ in drafts]
    for index, node, _ in cut(drafts, reach, rows, cost, margin):
        kept[index].append(node)
    return [
        draft if len(nodes) == len(draft) else draft.keep(sorted(nodes))
        for draft, nodes in zip(drafts, kept, strict=True)
    ]


def cut_at_best(
    drafts: Sequence[Draft], reach: Sequence[Sequence[float]], rows: int, cost: Cost, margin: float
) -> list[Node]:
    """The start of the best-first order after which the expected rate is largest. For drafts without drawn nodes."""
    order = list(best_first(drafts, reach))
    tokens = float(len(drafts))
    best, best_rate = 0, margin * tokens / cost(rows)
    for count, (_, _, probability) in enumerate(order, start=1):
        tokens += probability
        rate = tokens / cost(rows + count)
        if rate > best_rate:
            best, best_rate = count, rate
    return order[:best]


def cut_while_drawing(
    drafts: Sequence[Draft], reach: Sequence[Sequence[float]], rows: int, cost: Cost, margin: float
) -> Iterator[Node]:
    """Nodes in best-first order, of each draft for as long as the next one is worth it, judged before its token is looked at.

    A node is worth it where the rate rises with it and up to `_AHEAD` nodes below it that are each accepted as likely as it
    is: some numbers of rows cost next to nothing more than fewer.
    """
    tokens = float(len(drafts))
    rate = margin * tokens / cost(rows)
    ended: set[int] = set()
    for index, node, probability in best_first(drafts, reach):
        draft, parent = drafts[index], drafts[index].parents[node]
        if index in ended:
            continue
        if not (draft.together(parent) and node != draft.children(parent)[0]):
            above = 1.0 if parent == ROOT else reach[index][parent]
            accepted = probability / above if probability > 0.0 else 0.0
            ahead = itertools.accumulate(probability * accepted**depth for depth in range(_AHEAD))
            if not any((tokens + more) / cost(rows + count) > rate for count, more in enumerate(ahead, start=1)):
                ended.add(index)
                continue
        yield index, node, probability
        tokens, rows = tokens + probability, rows + 1
        rate = tokens / cost(rows)


def best_first(drafts: Sequence[Draft], reach: Sequence[Sequence[float]]) -> Iterator[Node]:
    """All nodes, next the one that is likeliest to be reached: of a draft without drawn nodes any whose parent came before, of
    another one the next of its own order."""
    orders = [
        draft.best_first if draft.draws else sorted(range(len(draft)), key=lambda node, of=of: -of[node])  # type: ignore[misc]
        for draft, of in zip(drafts, reach, strict=True)
    ]
    heads = [(-reach[index][order[0]], index, 0) for index, order in enumerate(orders) if order]
    heapq.heapify(heads)
    while heads:
        negative, index, at = heapq.heappop(heads)
        order = orders[index]
        yield index, order[at], -negative
        if at + 1 < len(order):
            heapq.heappush(heads, (-reach[index][order[at + 1]], index, at + 1))
