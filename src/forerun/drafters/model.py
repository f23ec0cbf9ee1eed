"""A language model as a drafter: a chain or a small tree per step, grown best-first (Leviathan et al. 2211.17192).

It draws with the request's own sampling parameters. Under keyed verification it draws with the target's noise at the same
positions, so it proposes what the target would say if the two models agreed (2408.07978); otherwise each node's q is the
distribution that it was really drawn from, and siblings are drawn without replacement by the same race.

Each pass hangs the tree off the deepest node that all the nodes to be continued share, so a chain costs one row a pass.
There are as many passes as the tree has levels.

A stage (`m<a`, staged speculation 2308.04623, CS-Drafting 2312.11462) drafts for this model in turn: each pass also reads
what the stage says after the likeliest node, and where the model's own draw agrees, the next level needs no pass. The draws
are keyed, so the draft is the same as without a stage, in fewer passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from forerun.core.draft import EMPTY, Draft
from forerun.core.model import NOTHING, Model, ModelInfo
from forerun.core.protocols import Drafter, DraftRequest
from forerun.core.transcript import Transcript
from forerun.drafters.bridge import Shared
from forerun.drafters.draft_model import DraftModel, ModelSession
from forerun.drafters.head import Head
from forerun.drafters.model_tree import Annotate, ModelTree
from forerun.errors import BackendError


class ModelDrafter:
    """Drafts with a smaller, older or more strongly quantized model.

    target: what it drafts for. head, borrows, shared, keep_prefixes: see `DraftModel`.
    width: siblings per node; 1 is a chain.
    threshold: a node whose estimated probability to be reached is below it is kept but not continued.
    depth: most levels of the tree, so most passes (0: the number of nodes decides).
    chunk: most tokens of a text that one pass reads.
    stage: drafts for this model, at most `stage_tokens` tokens a pass.
    annotate: what to tell the verifier about each node, from the model's row at its parent.
    """

    needs = NOTHING

    def __init__(
        self,
        model: Model,
        target: ModelInfo,
        *,
        width: int = 1,
        threshold: float = 0.0,
        depth: int = 0,
        chunk: int = 256,
        keep_prefixes: int = 0,
        stage: Drafter | None = None,
        stage_tokens: int = 4,
        head: Head | None = None,
        borrows: bool = False,
        shared: Shared | None = None,
        annotate: Annotate | None = None,
        name: str = "",
    ) -> None:
        self.model = model
        own = name or f"model:{model.info.name}"
        self.name = own if stage is None else f"{own}<{stage.name}"
        # Under its own name: it draws the same whatever drafts for it.
        self.source = DraftModel(
            model, target, name=own, head=head, borrows=borrows, shared=shared, keep_prefixes=keep_prefixes
        )
        self.stage, self._stage_tokens = stage, stage_tokens
        self.width = width if model.info.tree else 1
        self.threshold, self.depth = threshold, depth
        self._chunk, self._annotate = chunk, annotate

    def open(self, transcript: Transcript) -> ModelSession:
        return ModelSession(self.source, transcript, None if self.stage is None else self.stage.open(transcript))

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft for each request, all texts in the same passes. Raises BackendError when a pass fails."""
        trees = [self._tree(request) for request in requests]
        growing = [tree for tree in trees if tree.open]
        try:
            self._catch_up(growing)
            while growing:
                self._grow(growing)
                growing = [tree for tree in growing if tree.open]
        except BackendError:
            # Whether there was another pass may have depended on what was drawn with a q, so that must stay as it is.
            if not any(tree.draws for tree in trees):
                raise
        return [tree.draft(self.name) for tree in trees]

    def _grow(self, trees: Sequence[ModelTree]) -> None:
        """One pass, and a level more of each tree."""
        inputs = [tree.input(ahead) for tree, ahead in zip(trees, self._ahead(trees), strict=True)]
        with self.model.forward(inputs, self.source.needs) as output:
            for index, tree in enumerate(trees):
                states = output.hidden(index, -1) if self.source.needs.hidden else None
                output.commit(index, tree.take(output.logits(index), states))

    def _tree(self, request: DraftRequest) -> ModelTree:
        depths = [depth for depth in (self.depth, request.depth) if depth]
        return ModelTree(
            cast(ModelSession, request.session),
            request.path,
            0 if request.depth == 0 else request.nodes,
            width=self.width,
            threshold=max(self.threshold, request.min_probability),
            depth=min(depths, default=0),
            lent=request.kv,
            annotate=self._annotate,
        )

    def _ahead(self, trees: Sequence[ModelTree]) -> list[Draft]:
        """What the stage says after each tree's likeliest node."""
        if self.stage is None:
            return [EMPTY] * len(trees)
        asked = []
        for tree in trees:
            path, most = tree.wants(self._stage_tokens)
            assert tree.session.stage is not None, "opened with the session"
            asked.append(DraftRequest(tree.session.stage, most, path=path))
        drafts = self.stage.propose(asked)
        info = self.model.info
        return [
            draft.fit(nodes=request.nodes, depth=request.nodes, tree=info.tree)
            if all(0 <= tree.session.reading.token(token) < info.vocab_size for token in draft.tokens)
            else EMPTY
            for tree, draft, request in zip(trees, drafts, asked, strict=True)
        ]

    def _catch_up(self, trees: Sequence[ModelTree]) -> None:
        """Read long texts a chunk at a time, all of them in the same passes."""
        waiting = list(trees)
        while waiting:
            chunks = [(tree, tree.session.chunk(tree.start, self._chunk, tree.lent)) for tree in waiting]
            waiting = [tree for tree, chunk in chunks if chunk is not None]
            if waiting:
                inputs = [chunk for _, chunk in chunks if chunk is not None]
                with self.model.forward(inputs) as output:
                    for index in range(len(inputs)):
                        output.commit(index, ())

    def close(self) -> None:
        """Release the models. Closing twice is harmless."""
        self.source.prefixes.clear()
        self.model.close()
        if self.stage is not None:
            self.stage.close()
