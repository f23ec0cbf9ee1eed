"""Draft models are compared with the target, made cheaper as asked, or refused, before any weights are read."""

from __future__ import annotations

from typing import Any

import pytest

from forerun.assembly.draft_models import DraftSource, coverage
from forerun.assembly.models import FoundModel, find_model
from forerun.config import Config
from forerun.drafters.bridge import Shared
from forerun.drafters.grammar import Single
from forerun.drafters.model import ModelDrafter
from forerun.drafters.slem import SlemDrafter
from forerun.errors import CompositionError, UsageError
from forerun.tokenizers.tokenizer import byte_tokenizer
from forerun.weights import Weights
from tests.unit.assembly.found import spelling, tiny

TURNED = range(255, -1, -1)
LETTERS = b"abcdefghijklmnopqrstuvwxyz"


def source(
    argument: str, draft: FoundModel | None = None, target: FoundModel | None = None, name: str = "model", **how: Any
) -> DraftSource:
    known = {} if draft is None else {draft.name: draft}
    chosen = {"needs_probs": False, "mixes": False, **how}
    return DraftSource(Single(name, argument), Config(backend="reference"), target or tiny(), known, **chosen)


def weights_of(found: FoundModel) -> Weights:
    assert found.weights is not None
    return found.weights


def test_a_model_of_the_same_vocabulary_is_taken_as_it_is() -> None:
    small = tiny("small")
    found = source("small", small)
    assert found.found is small
    assert (found.name, found.note, found.restricted, found.borrows) == ("small", "", False, False)


def test_fewer_bits_and_a_smaller_head() -> None:
    small = tiny("small")
    found = source("small@w4@head=100", small)
    assert found.found is not small
    assert (found.name, found.restricted) == ("model:small@w4@head=100", True)
    assert weights_of(found.found).spec.head_rows == 100
    assert found.found.types.keys() != small.types.keys()
    head = weights_of(found.found).tensors["head"]
    assert (head.shape, head.kind) == ((100, 64), "Q4_1")
    # The model that was named is as it was.
    assert weights_of(small).spec.head_rows == 0


def test_the_targets_own_copies() -> None:
    target = tiny()
    rounded, shallow = source("int4", target=target, name="self"), source("exit=1", target=target, name="self")
    assert weights_of(rounded.found).spec == weights_of(target).spec
    assert rounded.found.types != target.types
    assert weights_of(shallow.found).spec.layers == 1
    assert rounded.borrows
    assert shallow.borrows
    # What it says would be part of the text, and must not depend on where a step began.
    assert not source("int4", target=target, name="self", mixes=True).borrows


@pytest.mark.parametrize(
    ("what", "target", "says"),
    [
        ("int3", tiny(), "self:int3 is unknown"),
        ("int4", tiny(kind="Q4_0"), "nothing in big has more than 4 bits"),
        ("int8", find_model("toy", Config()), "toy has no weights, so it cannot draft for itself"),
        ("exit=9", tiny(), "9"),
    ],
)
def test_copies_that_cannot_be(what: str, target: FoundModel, says: str) -> None:
    with pytest.raises((UsageError, CompositionError), match=says):
        source(what, target=target, name="self")


def test_options_on_a_model_without_weights() -> None:
    toy = find_model("toy", Config())
    with pytest.raises(CompositionError, match="toy has no weights to make cheaper"):
        source("toy@w4", toy, toy)


@pytest.mark.parametrize(
    ("spelled", "needs_probs", "how"),
    [
        (TURNED, False, "among the shared tokens (TLI)"),
        (LETTERS, False, "as text that is read again (SLEM)"),
        # Somebody wants its distributions, which text that is read again has none of.
        (LETTERS, True, "among the shared tokens (TLI)"),
    ],
)
def test_another_vocabulary(spelled: Any, needs_probs: bool, how: str) -> None:
    other = tiny("other", spelling(spelled))
    found = source("other", other, needs_probs=needs_probs)
    assert found.note.startswith("other has another vocabulary than big (")
    assert how in found.note


def test_a_smaller_head_counts_the_targets_tokens() -> None:
    with pytest.raises(CompositionError, match="other has another vocabulary than big, so @head"):
        source("other@head=10", tiny("other", spelling(TURNED)))


@pytest.mark.parametrize(("spelled", "kind"), [(None, ModelDrafter), (TURNED, ModelDrafter), (LETTERS, SlemDrafter)])
def test_the_drafter_goes_by_the_name_of_its_model(spelled: Any, kind: type[object]) -> None:
    other = tiny("other", None if spelled is None else spelling(spelled), loads=True)
    drafter = source("other", other, tiny(loads=True)).drafter(None)
    assert isinstance(drafter, kind)
    assert drafter.name == "model:other"
    drafter.close()


def test_coverage_is_the_share_of_ordinary_text() -> None:
    target = byte_tokenizer()
    assert coverage(Shared(target, spelling(TURNED))) == 1.0
    assert 0.3 < coverage(Shared(target, spelling(LETTERS))) < 0.9
    assert coverage(Shared(target, spelling(b"\x00"))) < 0.01
