"""Every drafter by id, each built for a toy target: one line here puts a new drafter through the contract suite."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from forerun.backends.toy import ToyModel, random_logits, text_logits
from forerun.core.choosing import untruncated_probs
from forerun.core.draft import Draft
from forerun.core.protocols import Drafter
from forerun.core.transcript import Transcript
from forerun.drafters.base import Session, SessionDrafter
from forerun.drafters.bridge import Shared
from forerun.drafters.compose import Merge
from forerun.drafters.head import Head
from forerun.drafters.history import History
from forerun.drafters.model import ModelDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.none import NoneDrafter
from forerun.drafters.prediction import PredictionDrafter
from forerun.drafters.recycling import Matrix, RecyclingDrafter
from forerun.drafters.slem import SlemDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.testing import CONTEXT, TEXT, VOCAB, target
from forerun.tokenizers.tokenizer import Tokenizer

__all__ = ["CONTEXT", "DRAFTERS", "TEXT", "VOCAB", "small_model", "target"]


def small_model(*, rows: int = VOCAB, context: int = CONTEXT, tree: bool = True, seed: int = 6) -> ToyModel:
    """A draft model that is right often: the target's manner with another tilt. It may have other padding."""
    known = [token for token in TEXT if token < rows]
    manner, tilt = text_logits(known, rows, 1), random_logits(rows, seed, 1.0)
    return ToyModel(rows, 1, lambda path: manner(path) * 0.5 + tilt(path), context=context, name="small", tree=tree)


def model(by: ToyModel | None = None, **options: Any) -> ModelDrafter:
    return ModelDrafter(by or small_model(), target().info, **({"chunk": 7} | options))


def other_model(**options: Any) -> ModelDrafter:
    """A second one, which draws with other noise."""
    return model(small_model(seed=8), name="model:other", **options)


def remembering() -> History:
    """A history that has seen texts like those to come, and is so small that it forgets some of them."""
    history = History(60)
    for start in range(0, len(TEXT), 12):
        history.space().add(TEXT[start : start + 20])
    return history


class Pieces:
    """As much of a tokenizer as drafters look at: encodes greedily by the longest piece."""

    add_bos = strips_space = False
    bos_id = None

    def __init__(self, pieces: Sequence[bytes], eos: int) -> None:
        self.pieces = tuple(pieces)
        self.vocab_size, self.eos_id, self.control_ids = len(pieces), eos, frozenset([eos])

    def token_bytes(self, token: int) -> bytes:
        return self.pieces[token]

    def id_to_token(self, token: int) -> str:
        return self.pieces[token].decode("utf-8", "replace")

    def encode(self, text: str, *, special: bool = False, add_bos: bool | None = None) -> list[int]:
        left, ids = text.encode(), []
        while left:
            fits = [i for i, p in enumerate(self.pieces) if i not in self.control_ids and p and left.startswith(p)]
            best = max(fits, key=lambda i: len(self.pieces[i]), default=None)
            left = left[len(self.pieces[best]) if best is not None else 1 :]
            ids += [best] if best is not None else []
        return ids


def pieces(*spelled: str | bytes) -> Tokenizer:
    """A vocabulary whose first piece ends texts."""
    return cast(Tokenizer, Pieces([p.encode() if isinstance(p, str) else p for p in spelled], 0))


OURS = pieces("</s>", "a", "b", "c", "d", "e", " ", "ab", "cd", " a", "bc", b"\xc3")
THEIRS = pieces("</s>", "e", "d", "c", "b", "a", " ", "abc", " a", "ed")


def translating(**options: Any) -> ModelDrafter:
    """A model of another vocabulary that drafts among the tokens that both share."""
    return model(small_model(rows=10, seed=9), shared=Shared(OURS, THEIRS), **options)


def slem() -> SlemDrafter:
    """A model of another vocabulary whose text is read again."""
    return SlemDrafter(small_model(rows=10, seed=9), VOCAB, Shared(OURS, THEIRS), chunk=5)


HEAD = np.array([4, 1, 0, 7, 2, 9])


def headed(*, widened: bool) -> ModelDrafter:
    """A draft model with a head of half the ids; `widened` scores those of the text by some made-up product."""
    whole = small_model()
    cut = ToyModel(VOCAB, 1, lambda path: whole.logits_of(path)[HEAD], context=CONTEXT, name="small")
    made_up = random_logits(VOCAB, 4, 0.3)(())
    vectors = (lambda ids: made_up[ids, None]) if widened else None
    return ModelDrafter(cut, target().info, width=2, head=Head(HEAD, VOCAB, vectors))


class DrawnPairs(SessionDrafter[Session]):
    """A drafter from elsewhere that runs no model and draws all the same: chains of tokens by how often one followed
    another in TEXT, with the q that they were drawn from. Under keyed rules it draws with the target's noise."""

    name = "pairs"

    def __init__(self, number: int = 7, vocab: int = VOCAB) -> None:
        self._number = number
        counts = np.full((vocab, vocab), 0.3)
        for first, second in itertools.pairwise(token for token in TEXT if token < vocab):
            counts[first, second] += 1.0
        self._q = counts / counts.sum(axis=1, keepdims=True)

    def open(self, transcript: Transcript) -> Session:
        return Session(transcript)

    def draft(self, session: Session, path: Sequence[int], nodes: int) -> Draft:
        transcript = session.transcript
        own = not transcript.keyed and not transcript.request.sampling.greedy
        tokens = list(path)
        q: list[NDArray[np.float64]] = []
        for _ in range(nodes):
            row = self._q[tokens[-1] if tokens else transcript.tokens[-1]]
            prefix = transcript.prefix(tokens)
            if transcript.request.sampling.greedy:
                tokens.append(int(row.argmax()))
            else:
                stream = transcript.drafting_stream(prefix.path, self._number)
                tokens.append(stream.race(np.log(row), prefix.length))
            q.append(row)
        return Draft.chain(tokens[len(path) :], q if own else None, source=self.name)


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "none": NoneDrafter,
    "ngram": NgramDrafter,
    "ngram-long": lambda: NgramDrafter(2, 6),
    "suffix": SuffixDrafter,
    "suffix-bold": lambda: SuffixDrafter(floor=0.0, stretch=9.0),
    "suffix-remembering": lambda: SuffixDrafter(remembering()),
    "recycling": lambda: RecyclingDrafter(VOCAB),
    "recycling-small": lambda: RecyclingDrafter(VOCAB - 3, Matrix(limit=4), floor=0.0),
    "prediction": lambda: PredictionDrafter(VOCAB),
    "pairs": DrawnPairs,
    "model": model,
    "model-tree": lambda: model(width=3),
    "model-threshold": lambda: model(width=2, threshold=0.4),
    "model-shallow": lambda: model(width=4, depth=2),
    "model-chains-only": lambda: model(width=3, by=small_model(tree=False)),
    "model-fewer-rows": lambda: model(width=2, by=small_model(rows=VOCAB - 2)),
    "model-more-rows": lambda: model(width=2, by=small_model(rows=VOCAB + 5)),
    "model-annotated": lambda: model(width=2, annotate=untruncated_probs),
    "model-keeping-prefixes": lambda: model(width=2, keep_prefixes=3),
    "model-short-context": lambda: model(width=2, by=small_model(context=40)),
    "model-head": lambda: headed(widened=False),
    "model-head-widened": lambda: headed(widened=True),
    "model-tli": lambda: translating(width=2, chunk=5),
    "model-tli-stage": lambda: translating(stage=SuffixDrafter()),
    "model-slem": slem,
    "stage": lambda: model(stage=SuffixDrafter()),
    "stage-tree": lambda: model(width=3, stage=Merge([NgramDrafter(), RecyclingDrafter(VOCAB)])),
    "stage-drawing": lambda: model(width=2, stage=DrawnPairs()),
    "stages": lambda: model(stage=model(by=small_model(seed=8), stage=NgramDrafter())),
    "merge": lambda: Merge([SuffixDrafter(), RecyclingDrafter(VOCAB), model(width=2)]),
    "merge-model-first": lambda: Merge([model(width=2, depth=1), NgramDrafter(), PredictionDrafter(VOCAB)]),
    "merge-models": lambda: Merge([model(width=2, depth=2), other_model(width=2)]),
    "merge-drawn": lambda: Merge([DrawnPairs(), model(width=2)]),
    "merge-slem": lambda: Merge([NgramDrafter(), slem()]),
    "nested": lambda: Merge([Merge([SuffixDrafter(), model()]), Merge([NgramDrafter(), other_model(depth=3)])]),
}
