"""A chat template, run in a process of its own: whatever it does, it takes bounded time and memory (forerun.confined)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, Final

from forerun.confined.worker import ExceededError, Worker
from forerun.errors import ForerunError, ModelFileError, PromptError

# Characters of a template; the longest of well-known models has 17,000.
LONGEST: Final = 200_000


class Template:
    """Compiled when it is first used, so that an unusable one harms nobody who passes plain text.

    A rendering takes a third of a millisecond more than in this process, the first one the start of the other too (some
    70 ms, which `start` lets pass while something else is done). Methods and properties raise ModelFileError where the
    template is not valid Jinja, or takes too much.
    """

    def __init__(self, source: str) -> None:
        self._source = source

    @cached_property
    def _worker(self) -> Worker:
        if len(self._source) > LONGEST:
            raise ModelFileError(
                f"the model's chat template is {len(self._source)} characters long, more than {LONGEST}: "
                "ask without it (raw), or use another model"
            )
        return Worker("forerun.text.render_worker", self._source)

    def start(self) -> None:
        """Start the process without waiting for it. Where there can be none, the first rendering says so."""
        with suppress(ForerunError):
            self._worker.start()

    @cached_property
    def strings(self) -> frozenset[str]:
        """Texts of up to 32 characters that its expressions have as constants: roles that it may know are among them."""
        return frozenset(self._opened["strings"])

    @cached_property
    def names(self) -> frozenset[str]:
        """Variables that it reads or sets."""
        return frozenset(self._opened["names"])

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text. Raises PromptError where the template refuses or fails, or a variable is not plain data."""
        try:
            text: str = self._worker.ask(variables)
        except ExceededError as error:
            raise _exceeded(error) from error
        except TypeError as error:
            raise PromptError(
                f"the conversation holds {error}: pass text, numbers, lists and objects, as in JSON"
            ) from error
        return text

    @property
    def _opened(self) -> Any:
        try:
            return self._worker.opened()
        except ExceededError as error:
            raise _exceeded(error) from error


def _exceeded(error: ExceededError) -> ModelFileError:
    return ModelFileError(f"the model's chat template {error}: ask without it (raw), or use another model")
