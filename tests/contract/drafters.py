"""Every drafter by id, each built for a toy target: one line here puts a new drafter through the contract suite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from forerun.backends.toy import ToyModel, random_logits, text_logits
from forerun.core.draft import Draft
from forerun.core.protocols import Drafter
from forerun.core.request import Request
from forerun.drafters.bridge import Shared
from forerun.drafters.choice import Choice
from forerun.drafters.compose import Chain, Extend, Merge
from forerun.drafters.head import Head
from forerun.drafters.history import History
from forerun.drafters.logitspec import LogitSpecDrafter
from forerun.drafters.lookahead import LookaheadDrafter
from forerun.drafters.model import Helper, ModelDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.none import NoneDrafter
from forerun.drafters.prediction import PredictionDrafter
from forerun.drafters.recycling import Matrix, RecyclingDrafter
from forerun.drafters.slem import SlemDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.testing import CONTEXT, TEXT, VOCAB, target
from forerun.tokenizers.tokenizer import Tokenizer

__all__ = ["CONTEXT", "DRAFTERS", "TEXT", "VOCAB", "helper", "target"]


def helper(*, rows: int = VOCAB, context: int = CONTEXT, tree: bool = True, seed: int = 6) -> ToyModel:
    """A draft model that is right often: the target's manner with another tilt. It may have other padding."""
    known = [token for token in TEXT if token < rows]
    babble, tilt = text_logits(known, rows, 1), random_logits(rows, seed, 1.0)
    return ToyModel(rows, 1, lambda path: babble(path) * 0.5 + tilt(path), context=context, name="helper", tree=tree)


def model(
    width: int = 1,
    threshold: float = 0.0,
    depth: int = 0,
    helps: ToyModel | None = None,
    below: Helper | None = None,
) -> ModelDrafter:
    return ModelDrafter(helps or helper(), target().info, width=width, threshold=threshold, depth=depth, chunk=7)


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


def translated(rows: int = 10) -> ToyModel:
    return helper(rows=rows, seed=9)


HEAD = np.array([4, 1, 0, 7, 2, 9])


def headed(*, widened: bool) -> ModelDrafter:
    """A draft model with a head of half the ids; `widened` scores those of the text by some made-up product."""
    whole = helper()
    cut = ToyModel(VOCAB, 1, lambda path: whole._law(path)[HEAD], context=CONTEXT, name="helper")
    made_up = random_logits(VOCAB, 4, 0.3)(())
    vectors = (lambda ids: made_up[ids, None]) if widened else None
    return ModelDrafter(cut, target().info, width=2, head=Head(HEAD, VOCAB, vectors))


class Turns:
    """Judges by the length of the text alone, so that drafts can be had again."""

    def depths(self, requests: Sequence[Request], cheap: Sequence[Draft], unread: Sequence[int]) -> list[int]:
        return [len(request.tokens) % 4 for request in requests]

    def watches(self, request: Request) -> bool:
        return True

    def watched(self, request: Request, sureness: float) -> None:
        assert 0.0 < sureness <= 1.0

    def threshold(self) -> float:
        return 0.1

    def spent(self, requests: Sequence[Request], drafts: Sequence[Draft], read: Sequence[int], seconds: float) -> None:
        pass


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "none": NoneDrafter,
    "ngram": NgramDrafter,
    "ngram-long": lambda: NgramDrafter(2, 6),
    "suffix": SuffixDrafter,
    "suffix-bold": lambda: SuffixDrafter(floor=0.0, stretch=9.0),
    "suffix-remembering": lambda: SuffixDrafter(remembering()),
    "recycling": lambda: RecyclingDrafter(VOCAB),
    "recycling-small": lambda: RecyclingDrafter(VOCAB - 3, Matrix(limit=4), floor=0.0),
    "logitspec": lambda: LogitSpecDrafter(VOCAB),
    "prediction": lambda: PredictionDrafter(VOCAB),
    "lookahead": lambda: LookaheadDrafter(VOCAB),
    "model": model,
    "model-tree": lambda: model(width=3),
    "model-threshold": lambda: model(width=2, threshold=0.4),
    "model-shallow": lambda: model(width=4, depth=2),
    "model-chains-only": lambda: model(width=3, helps=helper(tree=False)),
    "model-fewer-rows": lambda: model(width=2, helps=helper(rows=VOCAB - 2)),
    "model-more-rows": lambda: model(width=2, helps=helper(rows=VOCAB + 5)),
    "chain": lambda: Chain([PredictionDrafter(VOCAB), NgramDrafter(3, 4), RecyclingDrafter(VOCAB)]),
    "merge": lambda: Merge([SuffixDrafter(), RecyclingDrafter(VOCAB), model(width=2)]),
    "extend": lambda: Extend([SuffixDrafter(), RecyclingDrafter(VOCAB)]),
    "extend-model": lambda: Extend([NgramDrafter(), model(width=2, threshold=0.2)]),
    "model-extended": lambda: Extend([model(width=2, depth=1), NgramDrafter()]),
    "stage": lambda: model(below=SuffixDrafter()),
    "stage-tree": lambda: model(width=3, below=Merge([NgramDrafter(), RecyclingDrafter(VOCAB)])),
    "stages": lambda: model(below=model(helps=helper(seed=8), below=NgramDrafter())),
    "choice": lambda: Choice(Merge([SuffixDrafter(), RecyclingDrafter(VOCAB)]), model(width=2), Turns()),
    "nested": lambda: Chain([Extend([SuffixDrafter(), model()]), Merge([NgramDrafter(), LookaheadDrafter(VOCAB)])]),
    "model-tli": lambda: ModelDrafter(translated(), target().info, width=2, chunk=5, shared=Shared(OURS, THEIRS)),
    "model-tli-helped": lambda: ModelDrafter(
        translated(), target().info, helper=SuffixDrafter(), shared=Shared(OURS, THEIRS)
    ),
    "model-slem": lambda: SlemDrafter(translated(), VOCAB, Shared(OURS, THEIRS), chunk=5),
    "slem-extended": lambda: Extend([NgramDrafter(), SlemDrafter(translated(), VOCAB, Shared(OURS, THEIRS))]),
    "model-head": lambda: headed(widened=False),
    "model-head-widened": lambda: headed(widened=True),
    "model-short-context": lambda: model(width=2, helps=helper(context=40)),
}
