"""The memory for keys and values: one budget, shared by the target and the models that draft for it."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.assembly.models import FoundModel
from forerun.config import Config

# Of the memory that is free when models are loaded, the share that keys and values may take unless told otherwise.
_SHARE = 0.8


def divide(config: Config, target: FoundModel, drafting: Sequence[FoundModel]) -> None:
    """Give each model a part of the budget, such that all of them hold texts of the same length.

    drafting: models that keep keys and values of their own. Nothing is given where the budget is not known.
    """
    total = config.kv_memory
    if total is None:
        from forerun.backends.cpu.options import free_memory

        free = free_memory()
        total = None if free is None else int(free * _SHARE)
    # The same model may draft under several names; a model that was loaded for another assembly keeps what it has.
    models = list({id(model): model for model in (target, *drafting)}.values())
    per_token = [_bytes_per_token(model, config) for model in models]
    if total is None or not sum(per_token):
        return
    for model, own in zip(models, per_token, strict=True):
        model.kv_memory = total * own // sum(per_token) or None


def _bytes_per_token(model: FoundModel, config: Config) -> int:
    """Keys and values of one token in all layers; only proportions matter."""
    if model.weights is None:
        return 0
    spec = model.weights.spec
    return spec.layers * spec.kv_heads * 2 * spec.head_dim * (2 if config.kv_dtype == "fp16" else 4)
