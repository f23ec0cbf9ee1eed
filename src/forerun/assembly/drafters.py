"""From a draft in the language of `drafters.grammar` to the methods of an engine, with everything found and checked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from forerun.assembly.draft_models import CHEAP, DraftSource
from forerun.assembly.models import FoundModel
from forerun.cascade.build import Cascades, stages
from forerun.config import PARTS, Config
from forerun.core import choosing
from forerun.core.model import Model
from forerun.core.protocols import Drafter
from forerun.drafters.grammar import KNOWN, Composition, Single, Spec, assemble, parse, singles
from forerun.drafters.plugins import Factory, Host, Plugin, installed
from forerun.engine import Method
from forerun.errors import CompositionError, UsageError

# What `auto` drafts with: everything that costs next to nothing, in one tree (a request without a prediction has none to
# draft from); and a draft model that is on this machine already, where it is worth more.
AUTO = "prediction+suffix+recycling"
# Drafters that run a model.
_MODELS = ("model", "self")


class Drafting:
    """The drafts of a configuration, read and their models found and compared with the target, but not loaded.

    Raises UsageError for a draft that makes no sense, CompositionError for a model of another vocabulary, or for a
    cascade of which the drafter can have no part. known: draft models that were found already, by name.
    """

    def __init__(self, config: Config, target: FoundModel, cascades: Cascades, known: Mapping[str, FoundModel]) -> None:
        self._config, self._target, self._cascades = config, target, cascades
        self._plugins: dict[str, tuple[Plugin, Factory]] = {}
        self._made: dict[tuple[Single, int], Drafter] = {}
        self._own = None if isinstance(config.draft, str) else config.draft
        texts = ["none" if self._own is not None else str(config.draft), *config.other_drafts]
        self.specs: list[Spec] = [self._parsed(_auto(config) if text == "auto" else text) for text in texts]
        for spec in self.specs:
            _check_choice(spec)
        cascades.check(self.spec, target.name)
        if config.memory is not None and config.remember != "texts" and not config.memory.exists():
            raise UsageError(
                f"there is no memory file {config.memory}; make it with `forerun memory build`, or let answers be "
                "remembered in it with --remember texts."
            )
        self._sources: dict[Single, DraftSource] = {}
        mixes = bool(cascades.mixtures)
        for spec in self.specs:
            staged = _staged(spec)
            for single in singles(spec):
                if single.name in _MODELS and single not in self._sources:
                    needs = mixes or single in staged
                    self._sources[single] = DraftSource(single, config, target, known, needs_probs=needs, mixes=mixes)
        if cascades.plain or len(cascades.mixtures) > 1:
            self._check_stages()

    @property
    def spec(self) -> Spec:
        """The default draft."""
        return self.specs[0]

    @property
    def name(self) -> str:
        """The default draft as results show it."""
        return getattr(self._own, "name", "custom") if self._own is not None else str(self.spec)

    @property
    def drafts(self) -> bool:
        """Whether anything is ever proposed."""
        return self._own is not None or any(single.name != "none" for spec in self.specs for single in singles(spec))

    @property
    def uses_predictions(self) -> bool:
        """Whether anything looks at what a request expects back. Drafters of other packages may."""
        names = {single.name for spec in self.specs for single in singles(spec)}
        return "prediction" in names or not names.isdisjoint(self._plugins) or self._own is not None or not self.drafts

    @property
    def models(self) -> list[FoundModel]:
        """The draft models, those first that read texts themselves."""
        return [source.found for source in sorted(self._sources.values(), key=lambda source: source.borrows)]

    @property
    def reading_models(self) -> list[FoundModel]:
        """Those that keep keys and values of their own."""
        return [source.found for source in self._sources.values() if not source.borrows]

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about the draft models."""
        return tuple(source.note for source in self._sources.values() if source.note)

    def methods(self) -> dict[str, Method]:
        """Load what is needed; the default first. Raises CompositionError, ModelError or BackendError."""
        built: dict[str, Method] = {}
        if self._own is not None:
            self._own = drafter = self._from_outside(self._own)
            built[self.name] = Method(cheap=drafter)
        for spec in self.specs[self._own is not None :]:
            if any(single.name != "none" for single in singles(spec)):
                built[str(spec)] = self._method(spec)
        return built

    def stages(self) -> list[Model]:
        """The models of `model:a<model:b`, from the one that drafts for the target down, loaded."""
        return [self._sources[single].found.model for single in stages(self.spec)]

    def _parsed(self, text: str) -> Spec:
        """What the text says; other packages are looked at only for names that are not known here."""
        try:
            return parse(text)
        except UsageError:
            found = installed(KNOWN)
            spec = parse(text, {**KNOWN, **dict.fromkeys(found, "")})
        named = {single.name for single in singles(spec)} & found.keys()
        self._plugins |= {name: (found[name], found[name].load()) for name in sorted(named)}
        return spec

    def _method(self, spec: Spec) -> Method:
        if isinstance(spec, Composition) and spec.sign == "|":
            cheap, model = spec.parts
            return Method(assemble(cheap, self._make), assemble(model, self._make))
        drafter = assemble(spec, self._make)
        return Method(model=drafter) if _runs_model(spec) else Method(cheap=drafter)

    def _check_stages(self) -> None:
        """Stages of a cascade write in each other's ids: every one must be of the target's vocabulary."""
        from forerun.tokenizers.vocabulary import compare

        for single in stages(self.spec):
            source = self._sources[single]
            report = compare(self._target.tokenizer, source.found.tokenizer)
            why = "its head has rows for some tokens only" if source.restricted else report.describe()
            if source.restricted or not report.shared:
                raise CompositionError(
                    f"{source.name} cannot be a stage of a cascade below {self._target.name}: {why}."
                )

    def _make(self, single: Single, stage: Drafter | None) -> Drafter:
        """One drafter by name, made once however many drafts it is part of."""
        key = (single, id(stage))
        if key not in self._made:
            self._made[key] = self._new(single, stage)
        return self._made[key]

    def _new(self, single: Single, stage: Drafter | None) -> Drafter:
        if single in self._sources:
            model, cascades = None, self._cascades
            if len(cascades.mixtures) > 1:
                model = cascades.model(stages(self.spec).index(single), self.stages())
            annotate = choosing.untruncated_probs if cascades.mixtures and not cascades.plain else None
            return self._sources[single].drafter(stage, model, annotate)
        if single.name in self._plugins:
            plugin, factory = self._plugins[single.name]
            return plugin.make(factory, self._host(single.argument))
        return _MAKERS[single.name](self._config, self._target)

    def _from_outside(self, given: Drafter | Factory) -> Drafter:
        """A drafter that the caller handed over, or what a function makes for this target. Raises CompositionError."""
        drafter: Any = given
        if isinstance(given, type) or not hasattr(given, "propose"):
            drafter = cast(Factory, given)(self._host(""))
        if missing := [part for part in PARTS["draft"] if not hasattr(drafter, part)]:
            raise CompositionError(
                f"what the function given as draft makes is no drafter: {type(drafter).__name__} has no "
                f"{', '.join(missing)}."
            )
        return cast(Drafter, drafter)

    def _host(self, argument: str) -> Host:
        return Host(self._target.model.info, self._target.tokenizer, argument)


def _check_choice(spec: Spec) -> None:
    if isinstance(spec, Composition) and spec.sign == "|":
        cheap, model = spec.parts
        if _runs_model(cheap) or not _runs_model(model):
            raise CompositionError(
                f"in the draft {spec}, the left side of '|' must run no model and the right side one; to put drafters into "
                "one tree, join them with '+'."
            )


def _runs_model(spec: Spec) -> bool:
    return any(single.name in _MODELS for single in singles(spec))


def _auto(config: Config) -> str:
    from forerun.models import Cache, find
    from forerun.models.catalogue import lookup

    entry = None if config.backend == "toy" else lookup(config.model)
    if entry is None or entry.drafter is None or Cache().get(find(entry.drafter)) is None:
        return AUTO
    if config.cascade is not None:
        return f"model:{entry.drafter}"  # a cascade mixes with a model's distribution
    return f"{AUTO}|model:{entry.drafter}{CHEAP}"


def _staged(spec: Spec) -> set[Single]:
    """The models that something drafts for."""
    if isinstance(spec, Single):
        return set()
    below = set().union(*map(_staged, spec.parts))
    return below | ({spec.parts[0]} if spec.sign == "<" and isinstance(spec.parts[0], Single) else set())


def _none(_config: Config, _target: FoundModel) -> Drafter:
    from forerun.drafters.none import NoneDrafter

    return NoneDrafter()


def _ngram(config: Config, _target: FoundModel) -> Drafter:
    from forerun.drafters.ngram import NgramDrafter

    return NgramDrafter(config.prompt_lookup_min, config.prompt_lookup_max)


def _suffix(config: Config, target: FoundModel) -> Drafter:
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


def _recycling(config: Config, target: FoundModel) -> Drafter:
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


def _prediction(_config: Config, target: FoundModel) -> Drafter:
    from forerun.drafters.prediction import PredictionDrafter

    return PredictionDrafter(target.model.info.usable_vocab)


_MAKERS: Mapping[str, Callable[[Config, FoundModel], Drafter]] = {
    "none": _none,
    "ngram": _ngram,
    "suffix": _suffix,
    "recycling": _recycling,
    "prediction": _prediction,
}
