"""The composition language: what binds tighter, what is refused and how it is said."""

from __future__ import annotations

import pytest

from forerun.core.protocols import Drafter
from forerun.drafters.compose import Merge
from forerun.drafters.grammar import Composition, Single, assemble, parse, singles
from forerun.drafters.none import NoneDrafter
from forerun.errors import ForerunError, UsageError


def shape(text: str) -> str:
    """Every composition in brackets."""

    def show(spec: Single | Composition) -> str:
        if isinstance(spec, Single):
            return str(spec)
        return "(" + spec.sign.join(show(part) for part in spec.parts) + ")"

    return show(parse(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ngram", "ngram"),
        (" ngram ", "ngram"),
        ("ngram+suffix+none", "(ngram+suffix+none)"),
        ("suffix+recycling|model:a<ngram", "((suffix+recycling)|(model:a<ngram))"),
        ("suffix+model:a<ngram", "(suffix+(model:a<ngram))"),
        ("model:a<model:b<suffix", "(model:a<(model:b<suffix))"),
        ("(ngram+suffix)+recycling", "((ngram+suffix)+recycling)"),
        ("model:a<(ngram+suffix)", "(model:a<(ngram+suffix))"),
        ("model:/some/path-1.2/Q4_K_M.gguf + ngram", "(model:/some/path-1.2/Q4_K_M.gguf+ngram)"),
        ('model:"a+b|c"+ngram', '(model:"a+b|c"+ngram)'),
        ("self:exit=6", "self:exit=6"),
        ("model:a@w4@head=32k", "model:a@w4@head=32k"),
        ("((ngram))", "ngram"),
    ],
)
def test_what_binds_tighter(text: str, expected: str) -> None:
    assert shape(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "ngram",
        "ngram+suffix",
        "(ngram+suffix)+none",
        "ngram|a:x",
        "a:x<(ngram+suffix)",
        "ngram+none|a:x<a:y<ngram",
        "a:x<a:y<ngram",
        'a:"x<y"',
    ],
)
def test_a_spec_says_itself(text: str) -> None:
    known = {"ngram": None, "suffix": None, "none": None, "a": "X"}
    assert str(parse(text, known)) == text
    assert parse(str(parse(text, known)), known) == parse(text, known)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "at its end: the name of a drafter is missing"),
        ("ngram+", "at its end: the name of a drafter is missing"),
        ("ngram+|suffix", r"at '\|suffix'"),
        ("(ngram", "a closing bracket is missing"),
        ("(ngram|suffix)", "a closing bracket is missing"),
        ("ngram)", r"at '\)': this does not belong here"),
        ("ngram suffix", "unknown drafter 'ngram suffix'"),
        ("ngram,suffix", r"drafters are joined by '\+', '\|' and '<'"),
        ("ngram>suffix", r"drafters are joined by '\+', '\|' and '<'"),
        ("sufix", r"unknown drafter 'sufix'; known: none, .* Did you mean suffix\?"),
        ("zzz", "known: none, .*ngram, .*model:NAME, self:int8"),
        ("model", "model needs an argument, model:NAME"),
        ("model:", "model needs an argument"),
        ("ngram|suffix|none", "more than two sides"),
        ("ngram:3", "ngram takes no argument"),
        ("ngram<suffix", r"only a model can be drafted for .*write ngram\+suffix"),
        ("(model:a+ngram)<suffix", "only a model can be drafted for"),
    ],
)
def test_mistakes_are_explained(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse(text)


class Noted(NoneDrafter):
    """A drafter that notes what it was made from and whether it was closed."""

    def __init__(self, name: str, stage: Drafter | None = None) -> None:
        self.name, self.stage, self.closed = name, stage, False

    def close(self) -> None:
        self.closed = True


def test_assembling_builds_what_was_said() -> None:
    def make(single: Single, stage: Drafter | None) -> Drafter:
        return Noted(str(single), stage)

    drafter = assemble(parse("ngram+model:m<suffix+none"), make)
    assert drafter.name == "ngram+model:m+none"
    assert isinstance(drafter, Merge)
    staged = drafter.parts[1]
    assert isinstance(staged, Noted)
    assert staged.stage is not None
    assert staged.stage.name == "suffix"
    assert [str(single) for single in singles(parse("ngram|model:m<suffix"))] == ["ngram", "model:m", "suffix"]


def test_stages_are_stacked_from_the_bottom() -> None:
    made: list[str] = []

    def make(single: Single, stage: Drafter | None) -> Drafter:
        made.append(str(single))
        return Noted(f"{single}({stage.name if stage else ''})")

    assert assemble(parse("model:a<model:b<suffix"), make).name == "model:a(model:b(suffix()))"
    assert made == ["suffix", "model:b", "model:a"]


def test_what_was_built_is_closed_when_a_later_part_fails() -> None:
    built: list[Noted] = []

    def make(single: Single, stage: Drafter | None) -> Drafter:
        if single.name == "suffix":
            raise ForerunError("no")
        built.append(Noted(single.name, stage))
        return built[-1]

    with pytest.raises(ForerunError, match="no"):
        assemble(parse("(ngram+recycling)+suffix"), make)
    assert [(noted.name, noted.closed) for noted in built] == [("ngram", True), ("recycling", True)]
