"""Every drafter by id, each built for a toy target: one line here puts a new drafter through the contract suite."""

from __future__ import annotations

from collections.abc import Callable

from forerun.backends.toy import ToyModel, random_law, text_law
from forerun.core.protocols import Drafter
from forerun.drafters.compose import Chain, Extend, Merge
from forerun.drafters.history import History
from forerun.drafters.logitspec import LogitSpecDrafter
from forerun.drafters.lookahead import LookaheadDrafter
from forerun.drafters.model import Helper, ModelDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.none import NoneDrafter
from forerun.drafters.prediction import PredictionDrafter
from forerun.drafters.recycling import Matrix, RecyclingDrafter
from forerun.drafters.suffix import SuffixDrafter

VOCAB = 12
CONTEXT = 110
TEXT = [1, 2, 3, 4, 5, 6, 1, 2, 3, 7, 8, 9, 1, 2, 3, 4, 10, 11, 5, 6, 1, 2, 0, 4] * 3


def target(seed: int = 5) -> ToyModel:
    """A target that babbles in the manner of TEXT, with an order-2 random tilt."""
    babble, tilt = text_law(TEXT, VOCAB, 2), random_law(VOCAB, seed, 1.5)
    return ToyModel(VOCAB, 2, lambda path: babble(path) * 0.5 + tilt(path), context=CONTEXT, name="target")


def helper(*, rows: int = VOCAB, context: int = CONTEXT, tree: bool = True, seed: int = 6) -> ToyModel:
    """A draft model that is right often: the target's manner with another tilt. It may have other padding."""
    known = [token for token in TEXT if token < rows]
    babble, tilt = text_law(known, rows, 1), random_law(rows, seed, 1.0)
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
    "nested": lambda: Chain([Extend([SuffixDrafter(), model()]), Merge([NgramDrafter(), LookaheadDrafter(VOCAB)])]),
    "model-short-context": lambda: model(width=2, helps=helper(context=40)),
}
