"""The language in which drafters are composed.

    draft     := merge [ "|" merge ]        the first always; the second, which runs a model, where it is worth more
    merge     := stage { "+" stage }        all in one tree
    stage     := single { "<" single }      each drafts for the model on its left
    single    := NAME [ ":" ARGUMENT ]  |  "(" merge ")"

Loosest first, so `a+b|c<d` is `(a+b)|(c<d)`. An argument ends at a sign of the language; in double quotes it may hold any of
them. Spaces around signs do not count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from forerun.core.protocols import Drafter
from forerun.drafters.compose import Merge
from forerun.errors import UsageError, unknown

# name -> what its argument is called, or None where it takes none ("" where it may have one: plug-ins).
KNOWN: Mapping[str, str | None] = {
    "none": None,
    "ngram": None,
    "suffix": None,
    "recycling": None,
    "prediction": None,
    "model": "NAME",
    "self": "int8 or exit=N",
}

_LEVELS = ("|", "+", "<")
_TOKEN = re.compile(r'\s*(?:(?P<sign>[|+<()])|(?P<single>(?:[^|+<()"]|"[^"]*")+))')


@dataclass(frozen=True)
class Single:
    """One drafter by name."""

    name: str
    argument: str = ""

    def __str__(self) -> str:
        quoted = f'"{self.argument}"' if re.search(r"[|+<()]", self.argument) else self.argument
        return f"{self.name}:{quoted}" if self.argument else self.name


@dataclass(frozen=True)
class Composition:
    """Drafters joined by one sign. Of `<` there are two parts: a model, and what drafts for it."""

    sign: str
    parts: tuple[Spec, ...]

    def __str__(self) -> str:
        def inner(part: Spec) -> str:
            looser = isinstance(part, Composition) and _LEVELS.index(part.sign) <= _LEVELS.index(self.sign)
            stacked = isinstance(part, Composition) and part.sign == self.sign == "<"
            return f"({part})" if looser and not stacked else str(part)

        return self.sign.join(inner(part) for part in self.parts)


Spec = Single | Composition
Make = Callable[[Single, Drafter | None], Drafter]


def parse(text: str, known: Mapping[str, str | None] = KNOWN) -> Spec:
    """What a text says. Raises UsageError that shows where it goes wrong; an unknown name lists the known ones."""
    parser = _Parser(text, known)
    spec = parser.level(0)
    parser.end()
    return spec


def singles(spec: Spec) -> list[Single]:
    """Every drafter named, from left to right."""
    return [spec] if isinstance(spec, Single) else [single for part in spec.parts for single in singles(part)]


def assemble(spec: Spec, make: Make) -> Drafter:
    """Build what was said, but for `|`, whose sides are built one by one.

    make: builds one drafter, given what drafts for it (None but for the left of a `<`).
    Raises CompositionError for parts that cannot work together, and whatever `make` raises; what was built by then is
    closed again.
    """
    built: list[Drafter] = []

    def one(spec: Spec) -> Drafter:
        if isinstance(spec, Single):
            drafter = make(spec, None)
        elif spec.sign == "<":
            model, stage = spec.parts
            assert isinstance(model, Single)
            drafter = make(model, one(stage))
        else:
            drafter = Merge([one(part) for part in spec.parts])
        built.append(drafter)
        return drafter

    try:
        return one(spec)
    except BaseException:
        for drafter in built:
            drafter.close()
        raise


class _Parser:
    """Recursive descent, one level of signs after the other."""

    def __init__(self, text: str, known: Mapping[str, str | None]) -> None:
        self._text, self._known = text, known
        self._at = 0

    def level(self, depth: int) -> Spec:
        if depth == len(_LEVELS):
            return self._single()
        sign = _LEVELS[depth]
        parts = [self.level(depth + 1)]
        while self._next_sign() == sign:
            self._take()
            parts.append(self.level(depth + 1))
        if len(parts) == 1:
            return parts[0]
        if sign == "|" and len(parts) > 2:
            raise UsageError(
                f"the draft {self._text!r} has more than two sides of '|'; it has a cheap one and a model."
            )
        return self._stages(parts) if sign == "<" else Composition(sign, tuple(parts))

    def _stages(self, parts: list[Spec]) -> Spec:
        """`m<a<b` is m drafted for by (a drafted for by b)."""
        spec = parts.pop()
        while parts:
            model = parts.pop()
            if not isinstance(model, Single) or not self._known.get(model.name):
                models = " or ".join(name for name, argument in self._known.items() if argument)
                raise UsageError(
                    f"in the draft {self._text!r}, {spec} cannot draft for {model}: only a model can be drafted for "
                    f"({models}). To put both into one tree, write {model}+{spec}."
                )
            spec = Composition("<", (model, spec))
        return spec

    def _single(self) -> Spec:
        start = self._at
        sign = self._next_sign()
        if sign == "(":
            self._take()
            spec = self.level(1)
            if self._next_sign() != ")":
                raise self._wrong("a closing bracket is missing")
            self._take()
            return spec
        match = _TOKEN.match(self._text, self._at)
        if sign is not None or match is None:
            raise self._wrong("the name of a drafter is missing")
        self._at = match.end()
        name, colon, argument = match["single"].strip().partition(":")
        name, argument = name.strip(), argument.strip().replace('"', "")
        if name not in self._known:
            raise self._unknown(name)
        wanted = self._known[name]
        if wanted is None and colon:
            self._at = start
            raise self._wrong(f"{name} takes no argument")
        if wanted and not argument:
            self._at = start
            raise self._wrong(f"{name} needs an argument, {name}:{wanted.split(' ')[0]}")
        return Single(name, argument)

    def end(self) -> None:
        if self._text[self._at :].strip():
            raise self._wrong("this does not belong here")

    def _next_sign(self) -> str | None:
        match = _TOKEN.match(self._text, self._at)
        return match["sign"] if match is not None else None

    def _take(self) -> None:
        match = _TOKEN.match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _wrong(self, why: str) -> UsageError:
        rest = self._text[self._at :].strip()
        where = f"at {rest!r}" if rest else "at its end"
        return UsageError(f"the draft {self._text!r} makes no sense {where}: {why}.")

    def _unknown(self, name: str) -> UsageError:
        if re.search("[,>]", name):
            return UsageError(f"the draft {self._text!r} makes no sense: drafters are joined by '+', '|' and '<'.")
        shown = [n if not argument else f"{n}:{argument.split(' ')[0]}" for n, argument in self._known.items()]
        return unknown("drafter", name, self._known, shown)
