"""Models by name: found and opened first, so that what cannot work together is refused before weights are read."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from forerun.backends.cores import capped
from forerun.config import Config
from forerun.core.model import Model

if TYPE_CHECKING:
    from forerun.text.chat import ChatTemplate
    from forerun.tokenizers.tokenizer import Tokenizer
    from forerun.weights import Weights


class FoundModel:
    """A model found but not loaded: what it is called, and enough of its files open to compare vocabularies.

    load: from the bytes that its keys and values may take (None: no limit of ours) to the model.
    weights: the opened files, None for a model that has none (the toy).
    kv_memory: what `model` is loaded with.
    """

    def __init__(
        self,
        name: str,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        load: Callable[[int | None], Model],
        weights: Weights | None = None,
    ) -> None:
        self.name = name
        self.tokenizer = tokenizer
        self.template = template
        self.weights = weights
        self.kv_memory: int | None = None
        self._load = load

    @cached_property
    def vocabulary(self) -> str:
        """A name for the token strings, the same for two tokenizers only if these are."""
        return hashlib.sha256("\0".join(self.tokenizer.tokens).encode("utf-8", "surrogatepass")).hexdigest()[:16]

    @property
    def types(self) -> Mapping[str, int]:
        """How many tensors are of each type (`Q4_K`, `F32`, ...); empty for the toy."""
        return {} if self.weights is None else Counter(tensor.kind for tensor in self.weights.tensors.values())

    def fingerprint(self, config: Config) -> str:
        """A name for what its keys and values depend on: the file, the backend and how they are stored."""
        parts = (*(self.stamp or (self.name,)), self.model.info.backend, config.kv_dtype, config.quantize)
        return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]

    @cached_property
    def stamp(self) -> tuple[Path, int, int] | None:
        """Path, size and time of change of its file: what is kept of it between runs goes by these. None for the toy."""
        if self.weights is None:
            return None
        path = self.weights.path.resolve()
        stat = path.stat()
        return path, stat.st_size, stat.st_mtime_ns

    @cached_property
    def model(self) -> Model:
        """The model, loaded when it is first asked for. Raises UnsupportedModelError, ModelFileError or BackendError."""
        return self._load(self.kv_memory)


def find_model(name: str, config: Config) -> FoundModel:
    """Resolve a name (fetching it on first use) and open its files. Raises ModelError or FetchError."""
    if config.backend == "toy" or name == "toy":
        return _toy()
    from forerun.models import resolve
    from forerun.text.chat import ChatTemplate
    from forerun.tokenizers.loading import load_tokenizer
    from forerun.weights import open_weights

    weights = open_weights(resolve(name, config.progress))
    tokenizer = load_tokenizer(weights)
    template = None if tokenizer.chat_template is None else ChatTemplate(tokenizer)
    short = Path(name).name if Path(name).exists() else name
    return FoundModel(short, tokenizer, template, partial(load_model, weights, tokenizer, short, config), weights)


def load_model(weights: Weights, tokenizer: Tokenizer, name: str, config: Config, kv_memory: int | None) -> Model:
    """Load weights into the backend that the config names; `auto` is the compiled core where it was built.

    Raises UnsupportedModelError, ModelFileError or BackendError.
    """
    threads = capped(config.threads)
    if backend_for(config.backend) == "cpu":
        from forerun.backends.cpu import CpuModel
        from forerun.backends.cpu.options import CpuOptions

        options = CpuOptions(
            threads=threads,
            kv_dtype=config.kv_dtype,
            kv_memory=kv_memory,
            quantize=config.quantize,
            context=config.context,
        )
        return CpuModel.from_weights(weights, name=name, usable_vocab=tokenizer.vocab_size, options=options)
    from forerun.backends.reference import ReferenceModel

    return ReferenceModel.from_weights(
        weights, name=name, usable_vocab=tokenizer.vocab_size, context=config.context, threads=threads
    )


def backend_for(asked: str) -> str:
    """The backend that runs when `asked` is wanted: `auto` falls back to `reference` where the core is missing."""
    if asked != "auto":
        return asked
    from forerun.backends.cpu import missing_core

    return "cpu" if missing_core() is None else "reference"


def notes(config: Config, backend: str) -> tuple[str, ...]:
    """What the user should know about the choice of backend and of threads."""
    said = []
    if config.backend == "auto" and backend == "reference":
        from forerun.backends.cpu import missing_core

        said.append(missing_core() or "")
    if config.threads != (used := capped(config.threads)):
        said.append(f"{config.threads} threads are more than there are cores to use here; {used} run.")
    return tuple(said)


def _toy() -> FoundModel:
    from forerun.backends.toy import ToyModel, text_logits
    from forerun.tokenizers.tokenizer import byte_tokenizer

    tokenizer = byte_tokenizer()
    logits = text_logits([*_TOY_TEXT.encode(), *tokenizer.eos_ids], tokenizer.vocab_size, 5)
    return FoundModel("toy", tokenizer, None, lambda kv_memory: ToyModel(tokenizer.vocab_size, 5, logits))


_TOY_TEXT = (
    "the drafter runs ahead and the target reads what the drafter wrote. what the target would have said it keeps, and "
    "what it would not have said it drops. the target reads the draft in one pass, so the text is the same and the "
    "passes are fewer. the drafter runs ahead again, and the target reads again, until the text has come to its end."
)
