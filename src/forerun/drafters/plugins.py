"""Drafters from other packages, found by entry point: a name of the group `forerun.drafters` is a name of the grammar.

    [project.entry-points."forerun.drafters"]
    markov = "my_package:make"

`make(host)` gets a `Host` and gives a drafter. `--draft markov` and `--draft markov:ARGUMENT` then both work, alone and
in compositions. A name of forerun's own is never replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from forerun.core.model import ModelInfo
from forerun.core.protocols import Drafter
from forerun.errors import CompositionError, ForerunError, UsageError
from forerun.tokenizers.tokenizer import Tokenizer

GROUP = "forerun.drafters"
_PARTS = ("name", "needs", "open", "propose", "close")


@dataclass(frozen=True)
class Host:
    """What a plug-in makes a drafter for: the target, its tokenizer, and what the user wrote after the colon."""

    info: ModelInfo
    tokenizer: Tokenizer
    argument: str = ""


Factory = Callable[[Host], Drafter]


@dataclass(frozen=True)
class Plugin:
    """A drafter's name and who brings it. `package` is as pip knows it."""

    name: str
    package: str
    entry: EntryPoint

    def load(self) -> Factory:
        """Import it. Raises UsageError that names the plug-in, whatever goes wrong."""
        try:
            factory = self.entry.load()
        except Exception as error:
            raise UsageError(
                f"the drafter {self.name!r} of the plug-in {self.package} cannot be loaded "
                f"({type(error).__name__}: {error}); repair or uninstall {self.package}."
            ) from error
        if not callable(factory):
            raise UsageError(
                f"the drafter {self.name!r} of the plug-in {self.package} is {type(factory).__name__}, not a function "
                f"that makes one; tell its authors."
            )
        made: Factory = factory
        return made

    def make(self, factory: Factory, host: Host) -> Drafter:
        """Ask for a drafter. Raises CompositionError that names the plug-in where it fails or gives something else."""
        try:
            drafter = factory(host)
        except ForerunError as error:
            raise type(error)(f"{self.name} (plug-in {self.package}): {error}") from error
        except Exception as error:
            raise CompositionError(
                f"the plug-in {self.package} failed to make the drafter {self.name!r} "
                f"({type(error).__name__}: {error}); tell its authors."
            ) from error
        missing = [part for part in _PARTS if not hasattr(drafter, part)]
        if missing:
            raise CompositionError(
                f"what the plug-in {self.package} gives for {self.name!r} is no drafter: {type(drafter).__name__} has no "
                f"{', '.join(missing)}; tell its authors."
            )
        return drafter


def installed(known: Mapping[str, str | None]) -> dict[str, Plugin]:
    """The plug-ins of this environment by name, those that `known` names left out.

    Raises UsageError where two packages claim one name.
    """
    found: dict[str, Plugin] = {}
    for entry in entry_points(group=GROUP):
        package = entry.dist.name if entry.dist is not None else entry.value.partition(":")[0]
        if entry.name in known:
            continue
        other = found.get(entry.name)
        if other is not None and other.package != package:
            raise UsageError(
                f"two plug-ins bring a drafter {entry.name!r}, {other.package} and {package}; uninstall one of them."
            )
        found[entry.name] = Plugin(entry.name, package, entry)
    return found
