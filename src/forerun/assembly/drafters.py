"""From a draft in the language of `drafters.grammar` to a drafter, with everything it needs found and checked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from forerun.assembly.cascades import Cascades, stages
from forerun.assembly.models import Source
from forerun.assembly.partners import CHEAP, Partner
from forerun.config import Config
from forerun.core.protocols import Drafter, Model
from forerun.drafters.choice import Choice, Judge
from forerun.drafters.grammar import KNOWN, Composition, Single, Spec, assemble, parse, singles
from forerun.drafters.none import NoneDrafter
from forerun.drafters.plugins import Factory, Host, Plugin, installed
from forerun.errors import CompositionError, UsageError

if TYPE_CHECKING:
    from forerun.drafters.model import Helper

# What `auto` drafts with: everything that costs next to nothing, in one tree (a request without a prediction has none to
# draft from); and a draft model that is on this machine already, where it is worth more.
AUTO = "prediction+suffix+recycling"


class Drafting:
    """A draft that was read and whose models were found and compared with the target, but not loaded.

    Raises UsageError for a draft that makes no sense, CompositionError for a model of another vocabulary, or for a
    cascade of which the drafter can have no part. known: draft models that were found already, by name.
    """

    def __init__(self, config: Config, target: Source, cascades: Cascades, known: Mapping[str, Source]) -> None:
        self._config, self._target, self._cascades = config, target, cascades
        self._plugins: dict[str, tuple[Plugin, Factory]] = {}
        self.spec: Spec = self._parsed(_auto(config) if config.draft == "auto" else config.draft)
        cascades.check(self.spec, target.name)
        if config.memory is not None and config.remember != "texts" and not config.memory.exists():
            raise UsageError(
                f"there is no memory file {config.memory}; make it with `forerun memory build`, or let answers be remembered "
                "in it with --remember texts."
            )
        self._partners: dict[Single, Partner] = {}
        helped, mixes = _helped(self.spec), bool(cascades.mixtures)
        for single in singles(self.spec):
            if single.name in ("model", "self") and single not in self._partners:
                laws = mixes or single in helped
                self._partners[single] = Partner(single, config, target, known, laws=laws, mixes=mixes)
        if cascades.plain or len(cascades.mixtures) > 1:
            self._check_stages()

    def _parsed(self, text: str) -> Spec:
        """What the text says; other packages are looked at only for names that are not known here."""
        try:
            return parse(text)
        except UsageError:
            found = installed(KNOWN)
            spec = parse(text, {**KNOWN, **dict.fromkeys(found, "")})
        named = {single.name for single in singles(spec)} & found.keys()
        self._plugins = {name: (found[name], found[name].load()) for name in sorted(named)}
        return spec

    @property
    def name(self) -> str:
        """The draft as results show it."""
        return str(self.spec)

    @property
    def drafts(self) -> bool:
        """Whether anything is ever proposed."""
        return any(single.name != "none" for single in singles(self.spec))

    @property
    def predicts(self) -> bool:
        """Whether anything looks at what a request expects back; plug-ins may, and where nothing drafts nobody minds."""
        names = {single.name for single in singles(self.spec)}
        return "prediction" in names or not names.isdisjoint(self._plugins) or not self.drafts

    def build(self, judge: Judge | None) -> Drafter:
        """Load what it needs. judge: decides between the sides of `|`, and whether a model drafts at all.

        Raises CompositionError, ModelError or BackendError.
        """
        drafter = assemble(self.spec, self._make, judge)
        chosen = isinstance(self.spec, Composition) and self.spec.sign == "|"
        if judge is None or chosen or not any(single.name in ("model", "self") for single in singles(self.spec)):
            return drafter
        return Choice(NoneDrafter(), drafter, judge)

    def stages(self) -> list[Model]:
        """The models of `model:a<model:b`, from the one that drafts for the target down, loaded."""
        return [self._partners[single].source.model for single in stages(self.spec)]

    @property
    def dear(self) -> Source | None:
        """The model that drafts for the target, if one does; of several, the first that reads texts itself."""
        found = sorted(self._partners.values(), key=lambda partner: partner.borrows)
        return found[0].source if found else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about the draft models."""
        return tuple(partner.note for partner in self._partners.values() if partner.note)

    def _check_stages(self) -> None:
        """Stages of a cascade write in each other's ids: every one must be of the target's vocabulary."""
        from forerun.tokenizers.vocabulary import compare

        for single in stages(self.spec):
            partner = self._partners[single]
            report = compare(self._target.tokenizer, partner.source.tokenizer)
            why = "its head has rows for some tokens only" if partner.restricted else report.describe()
            if partner.restricted or not report.shared:
                raise CompositionError(
                    f"{partner.name} cannot be a stage of a cascade below {self._target.name}: {why}."
                )

    def _make(self, single: Single, helper: Drafter | None) -> Drafter:
        if single in self._partners:
            model = None
            if len(self._cascades.mixtures) > 1:
                model = self._cascades.model(stages(self.spec).index(single), self.stages())
            return self._partners[single].drafter(cast("Helper | None", helper), model)
        if single.name in self._plugins:
            plugin, factory = self._plugins[single.name]
            return plugin.make(factory, Host(self._target.model.info, self._target.tokenizer, single.argument))
        made = _MAKERS.get(single.name)
        if made is None:
            raise UsageError(f"the drafter {single.name!r} cannot be built here.")
        return made(self._config, self._target)


def _auto(config: Config) -> str:
    from forerun.models import Cache, find
    from forerun.models.catalogue import lookup

    entry = None if config.backend == "toy" else lookup(config.model)
    if entry is None or entry.drafter is None or Cache().get(find(entry.drafter)) is None:
        return AUTO
    if config.cascade is not None:
        return f"model:{entry.drafter}"  # a cascade mixes with what a model thinks
    return f"{AUTO}|model:{entry.drafter}{CHEAP}"


def _helped(spec: Spec) -> set[Single]:
    """The models that something drafts for."""
    if isinstance(spec, Single):
        return set()
    below = set().union(*map(_helped, spec.parts))
    return below | ({spec.parts[0]} if spec.sign == "<" and isinstance(spec.parts[0], Single) else set())


def _none(config: Config, target: Source) -> Drafter:
    from forerun.drafters.none import NoneDrafter

    return NoneDrafter()


def _ngram(config: Config, target: Source) -> Drafter:
    from forerun.drafters.ngram import NgramDrafter

    return NgramDrafter(config.prompt_lookup_min, config.prompt_lookup_max)


def _suffix(config: Config, target: Source) -> Drafter:
    from forerun.drafters.history import History
    from forerun.drafters.suffix import SuffixDrafter

    path = config.memory
    if path is None and config.remember == "texts":
        path = _memory(f"{target.vocabulary}.history.npz")
    if path is None:
        return SuffixDrafter()
    history = History.load(
        path, vocabulary=target.vocabulary, vocab_size=target.tokenizer.vocab_size, own=config.memory is None
    )
    return SuffixDrafter(history, path=path if config.remember == "texts" else None)


def _recycling(config: Config, target: Source) -> Drafter:
    from forerun.drafters.recycling import Matrix, RecyclingDrafter

    usable = target.model.info.usable_vocab
    if config.remember == "nothing" or target.stamp is None:
        return RecyclingDrafter(usable)
    key = hashlib.sha256("\0".join(map(str, target.stamp)).encode()).hexdigest()[:12]
    path = _memory(f"{target.stamp[0].stem}-{key}.matrix.npz")
    return RecyclingDrafter(usable, Matrix.load(path, vocabulary=target.vocabulary), path=path)


def _memory(name: str) -> Path:
    """A file of what is remembered between runs, in the user's cache."""
    from forerun.core.files import default_home

    return default_home() / "memory" / name


def _logitspec(config: Config, target: Source) -> Drafter:
    from forerun.drafters.logitspec import LogitSpecDrafter

    return LogitSpecDrafter(target.model.info.usable_vocab)


def _prediction(config: Config, target: Source) -> Drafter:
    from forerun.drafters.prediction import PredictionDrafter

    return PredictionDrafter(target.model.info.usable_vocab)


def _lookahead(config: Config, target: Source) -> Drafter:
    from forerun.drafters.lookahead import LookaheadDrafter

    return LookaheadDrafter(target.model.info.usable_vocab)


_MAKERS: Mapping[str, Callable[[Config, Source], Drafter]] = {
    "none": _none,
    "ngram": _ngram,
    "suffix": _suffix,
    "recycling": _recycling,
    "logitspec": _logitspec,
    "prediction": _prediction,
    "lookahead": _lookahead,
}
