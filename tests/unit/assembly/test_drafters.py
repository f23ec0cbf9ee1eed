"""From a draft in words to the methods of an engine: what each has, what is refused, and what is loaded when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forerun.assembly import drafters
from forerun.assembly.drafters import AUTO, Drafting
from forerun.assembly.models import FoundModel, find_model
from forerun.cascade.build import Cascades
from forerun.config import Config
from forerun.drafters.compose import Merge
from forerun.drafters.model import ModelDrafter
from forerun.drafters.recycling import RecyclingDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.errors import CompositionError, UsageError
from tests.unit.assembly.found import tiny


def drafting(draft: str, *others: str, target: FoundModel | None = None, **options: Any) -> Drafting:
    config = Config(model="toy", draft=draft, other_drafts=others, **options)
    return Drafting(config, target or find_model("toy", config), Cascades.of(config), {})


def methods(draft: str, *others: str, **options: Any) -> dict[str, tuple[str | None, str | None]]:
    """The names of the cheap drafter and of that which runs a model, by method."""

    def name(drafter: Any) -> str | None:
        return None if drafter is None else drafter.name

    built = drafting(draft, *others, **options).methods()
    return {key: (name(method.cheap), name(method.model)) for key, method in built.items()}


@pytest.mark.parametrize(
    ("draft", "made"),
    [
        ("ngram", ("ngram", None)),
        ("suffix+recycling", ("suffix+recycling", None)),
        ("model:toy", (None, "model:toy")),
        ("ngram|model:toy", ("ngram", "model:toy")),
        ("model:toy<ngram", (None, "model:toy<ngram")),
    ],
)
def test_a_method_has_what_runs_a_model_apart(draft: str, made: tuple[str | None, str | None]) -> None:
    assert methods(draft) == {draft: made}


def test_drafters_that_run_a_model_and_others_in_one_tree_run_a_model() -> None:
    (method,) = drafting("ngram+model:toy").methods().values()
    assert method.cheap is None
    assert isinstance(method.model, Merge)


def test_the_default_is_first_and_none_is_no_method() -> None:
    assert list(methods("suffix", "none", "ngram", "model:toy")) == ["suffix", "ngram", "model:toy"]
    assert methods("none") == {}
    assert list(methods("none", "ngram")) == ["ngram"]


def test_a_drafter_that_stands_in_several_drafts_is_made_once() -> None:
    built = drafting("ngram|model:toy", "model:toy").methods()
    assert built["ngram|model:toy"].model is built["model:toy"].model
    assert isinstance(built["model:toy"].model, ModelDrafter)


def test_auto_runs_a_model_only_where_one_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(drafting("auto").spec) == AUTO
    chosen = Config(model="qwen2.5-coder-1.5b")
    monkeypatch.setattr("forerun.models.Cache.get", lambda cache, entry: None)
    assert drafters._auto(chosen) == AUTO
    monkeypatch.setattr("forerun.models.Cache.get", lambda cache, entry: Path("file"))
    assert drafters._auto(chosen) == f"{AUTO}|model:qwen2.5-coder-0.5b@w4@head=32k"
    assert drafters._auto(Config(model="smollm2-135m")) == AUTO  # has no smaller one
    assert drafters._auto(Config(model="qwen2.5-coder-1.5b", cascade="v3:0.5")) == "model:qwen2.5-coder-0.5b"


@pytest.mark.parametrize(
    ("draft", "uses"),
    [("ngram", False), ("prediction+ngram", True), ("none", True), ("suffix", False)],
)
def test_who_looks_at_a_prediction(draft: str, uses: bool) -> None:
    assert drafting(draft).uses_predictions == uses


@pytest.mark.parametrize("draft", ["ngram|suffix", "model:toy|model:toy", "model:toy|ngram"])
def test_the_sides_of_a_choice(draft: str) -> None:
    with pytest.raises(CompositionError, match=r"the left side of .* must run no model and the right side one"):
        drafting(draft)


def test_nothing_is_loaded_before_all_was_checked() -> None:
    with pytest.raises(UsageError, match="there is no memory file"):
        drafting("suffix", target=tiny(), memory="missing.npz")
    planned = drafting("self:exit=1", "ngram", target=tiny())
    assert (planned.name, planned.drafts) == ("self:exit=1", True)
    with pytest.raises(AssertionError, match="weights were loaded"):
        planned.methods()


def test_copies_of_the_target_keep_no_keys_of_their_own() -> None:
    planned = drafting("self:exit=1", target=tiny())
    assert len(planned.models) == 1
    assert planned.reading_models == []
    assert len(drafting("model:toy").reading_models) == 1


@pytest.mark.parametrize("remember", ["nothing", "matrix", "texts"])
def test_what_is_remembered_between_runs(remember: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_HOME", str(tmp_path))
    built = drafting("suffix", "recycling", remember=remember).methods()
    suffix, recycling = built["suffix"].cheap, built["recycling"].cheap
    assert isinstance(suffix, SuffixDrafter)
    assert isinstance(recycling, RecyclingDrafter)
    for drafter in (suffix, recycling):
        drafter.close()
    # The toy has no file that a matrix could belong to.
    assert [path.name.split(".", 1)[1] for path in tmp_path.rglob("*.npz")] == (
        ["history.npz"] if remember == "texts" else []
    )
