"""The one place that knows which tensors a decoder must have, and of which shape, by canonical name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from forerun.errors import ModelFileError, UnsupportedModelError
from forerun.weights.spec import Spec
from forerun.weights.tensors import Tensor

MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
BIASES = ("q_bias", "k_bias", "v_bias", "o_bias")


def required(spec: Spec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the tensors that `spec` cannot run without, in the order of a forward pass."""
    width, queries, keys = spec.width, spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    yield "embed", (spec.vocab_size, width)
    for i in range(spec.layers):
        layer = f"layers.{i}"
        yield f"{layer}.attn_norm", (width,)
        yield f"{layer}.q", (queries, width)
        yield f"{layer}.k", (keys, width)
        yield f"{layer}.v", (keys, width)
        yield f"{layer}.o", (width, queries)
        if spec.qk_norm:
            yield f"{layer}.q_norm", (spec.head_dim,)
            yield f"{layer}.k_norm", (spec.head_dim,)
        if spec.post_norms:
            yield f"{layer}.post_attn_norm", (width,)
            yield f"{layer}.post_ffn_norm", (width,)
        yield f"{layer}.ffn_norm", (width,)
        yield f"{layer}.gate", (spec.ffn, width)
        yield f"{layer}.up", (spec.ffn, width)
        yield f"{layer}.down", (width, spec.ffn)
    yield "norm", (width,)
    if not spec.tied:
        yield "head", (spec.head_rows or spec.vocab_size, width)


def optional(spec: Spec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the tensors that `spec` may have: biases of the attention."""
    queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    for i in range(spec.layers):
        for name, size in zip(BIASES, (queries, keys, keys, spec.width), strict=True):
            yield f"layers.{i}.{name}", (size,)


def checked(spec: Spec, path: Path) -> Spec:
    """The same spec, if its head counts fit each other. Raises ModelFileError."""
    if spec.heads % spec.kv_heads or spec.head_dim % 2:
        raise ModelFileError(
            f"{path}: {spec.heads} heads of size {spec.head_dim} over {spec.kv_heads} key heads do not fit: "
            "the file is damaged"
        )
    return spec


def validate(spec: Spec, tensors: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """`tensors` in the order of a forward pass, each present and of the shape that `spec` asks for.

    Raises ModelFileError for a missing tensor or a wrong shape, UnsupportedModelError for one that no layer here uses:
    to leave out a tensor would be to run another model.
    """
    # A layer count from a hostile file must not make the list of names longer than the file.
    if spec.layers > len(tensors):
        raise ModelFileError(f"{path}: says {spec.layers} layers but holds {len(tensors)} tensors: download it again")
    needed = dict(required(spec))
    missing = [name for name in needed if name not in tensors]
    if missing:
        raise ModelFileError(f"{path}: {_listed(missing)} missing: the file is incomplete, download it again")
    allowed = needed | dict(optional(spec))
    unknown = [name for name in tensors if name not in allowed]
    if unknown:
        raise UnsupportedModelError(
            f"{path}: a {spec.architecture} model has no use for {_listed(unknown)}: "
            "the file is a variant that forerun does not run, choose another model"
        )
    for name, tensor in tensors.items():
        if tensor.shape != allowed[name]:
            raise ModelFileError(
                f"{path}: tensor {name} has shape {list(tensor.shape)}, the model's description asks for "
                f"{list(allowed[name])}: the file is damaged or of an unknown variant"
            )
    return {name: tensors[name] for name in allowed if name in tensors}


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"tensor{'s' if len(names) > 1 else ''} {shown}"
