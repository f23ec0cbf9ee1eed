"""The composition language: what binds tighter, what is refused and how it is said."""

from __future__ import annotations

import pytest

from forerun.core.protocols import Drafter
from forerun.drafters.compose import Chain, Composed, Extend, Merge
from forerun.drafters.grammar import Composition, Single, assemble, parse, singles
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.none import NoneDrafter
from forerun.errors import CompositionError, ForerunError, UsageError


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
        ("ngram,suffix,none", "(ngram,suffix,none)"),
        ("ngram,suffix+recycling>model:a<ngram", "(ngram,(suffix+(recycling>(model:a<ngram))))"),
        ("model:a<model:b<suffix", "(model:a<(model:b<suffix))"),
        ("(ngram,suffix)>recycling", "((ngram,suffix)>recycling)"),
        ("model:a<(ngram,suffix)", "(model:a<(ngram,suffix))"),
        ("model:/some/path-1.2/Q4_K_M.gguf + ngram", "(model:/some/path-1.2/Q4_K_M.gguf+ngram)"),
        ('model:"a+b,c",ngram', '(model:"a+b,c",ngram)'),
        ("self:exit=6", "self:exit=6"),
        ("ngram,suffix|model:a<ngram", "((ngram,suffix)|(model:a<ngram))"),
        ("((ngram))", "ngram"),
    ],
)
def test_what_binds_tighter(text: str, expected: str) -> None:
    assert shape(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "ngram",
        "ngram,suffix",
        "(ngram,suffix)+none",
        "a:x<(ngram+suffix)",
        "a:x<a:y<ngram",
        "(ngram>suffix)>none",
        'a:"x>y"',
    ],
)
def test_a_spec_says_itself(text: str) -> None:
    known = {"ngram": None, "suffix": None, "none": None, "a": "X"}
    assert parse(str(parse(text, known)), known) == parse(text, known)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "at its end: the name of a drafter is missing"),
        ("ngram,", "at its end: the name of a drafter is missing"),
        ("ngram,+suffix", "at '+suffix'"),
        ("(ngram", "a closing bracket is missing"),
        ("ngram)", "at ')': this does not belong here"),
        ("ngram suffix", "unknown drafter 'ngram suffix'"),
        ("sufix", r"unknown drafter 'sufix'; known: none, ngram, .* Did you mean suffix\?"),
        ("zzz", "known: none, ngram, suffix, recycling, logitspec, prediction, lookahead, model:NAME, self:int8"),
        ("model", "model needs an argument, model:NAME"),
        ("model:", "model needs an argument"),
        ("ngram|suffix|none", "more than two sides"),
        ("ngram:3", "ngram takes no argument"),
        ("ngram<suffix", "only a model can be drafted for .*write ngram>suffix"),
        ("(model:a,ngram)<suffix", "only a model can be drafted for"),
    ],
)
def test_mistakes_are_explained(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("+", r"\+").replace(")'", r"\)'")):
        parse(text)


class Noted(NoneDrafter):
    """A drafter that notes what it was made from and whether it was closed."""

    def __init__(self, name: str, helper: Drafter | None = None) -> None:
        self.name, self.helper, self.closed = name, helper, False

    def close(self) -> None:
        self.closed = True


def test_assembling_builds_what_was_said() -> None:
    def make(single: Single, helper: Drafter | None) -> Drafter:
        return Noted(str(single), helper)

    drafter = assemble(parse("ngram,model:m<suffix+none>recycling"), make)
    assert drafter.name == "ngram,(model:m+(none>recycling))"
    assert isinstance(drafter, Chain)
    merged = drafter.parts[1]
    assert isinstance(merged, Merge)
    staged, extended = merged.parts
    assert isinstance(staged, Noted)
    assert staged.helper is not None
    assert staged.helper.name == "suffix"
    assert isinstance(extended, Extend)
    assert [str(single) for single in singles(parse("ngram,model:m<suffix"))] == ["ngram", "model:m", "suffix"]


def test_what_was_built_is_closed_when_a_later_part_fails() -> None:
    built: list[Noted] = []

    def make(single: Single, helper: Drafter | None) -> Drafter:
        if single.name == "suffix":
            raise ForerunError("no")
        built.append(Noted(single.name, helper))
        return built[-1]

    with pytest.raises(ForerunError, match="no"):
        assemble(parse("ngram,recycling+suffix"), make)
    assert [(noted.name, noted.closed) for noted in built] == [("ngram", True), ("recycling", True)]


def test_what_cannot_continue_cannot_extend() -> None:
    class Plain:
        name = "plain"
        needs = NgramDrafter.needs
        open = propose = close = None

    for parts in ([NgramDrafter(), Plain()], [NgramDrafter(), Chain([NgramDrafter(), Plain()])]):  # type: ignore[list-item]
        with pytest.raises(CompositionError, match="cannot extend"):
            Extend(parts)  # type: ignore[arg-type]
    with pytest.raises(CompositionError, match="two drafters"):
        Chain([NgramDrafter()])
    assert isinstance(Extend([Plain(), NgramDrafter()]), Composed)  # type: ignore[list-item]
