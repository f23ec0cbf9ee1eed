"""From named tensors to the matrices that the decoder multiplies with, checked against the model's description."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from forerun.backends.reference.linear import Linear
from forerun.backends.reference.workers import Workers
from forerun.core.model import Floats
from forerun.errors import ModelFileError
from forerun.weights.layout import optional, required
from forerun.weights.spec import Spec
from forerun.weights.tensors import Tensor

Tensors = Mapping[str, Floats]


@dataclass(frozen=True, eq=False)
class Layer:
    """Weights of one layer; q, k and v lie in one matrix, gate and up in another."""

    attn_norm: Floats
    qkv: Linear
    q_norm: Floats | None
    k_norm: Floats | None
    o: Linear
    post_attn_norm: Floats | None
    ffn_norm: Floats
    gate_up: Linear
    down: Linear
    post_ffn_norm: Floats | None


class Loader:
    """Takes tensors one at a time, so that a lazy mapping never holds the whole model twice.

    Raises ModelFileError for a tensor that is missing or has another shape than `spec` says.
    """

    def __init__(self, spec: Spec, tensors: Tensors, workers: Workers) -> None:
        self._spec = spec
        self._tensors = tensors
        self._workers = workers
        self._shapes = dict(required(spec)) | dict(optional(spec))

    def tensor(self, name: str) -> Floats:
        """A tensor that must be there, fp32."""
        if name not in self._tensors:
            raise ModelFileError(f"{self._spec.name}: tensor {name} is missing: the file is incomplete, get it again")
        values = np.ascontiguousarray(self._tensors[name], np.float32)
        if values.shape != self._shapes[name]:
            raise ModelFileError(
                f"{self._spec.name}: tensor {name} has shape {list(values.shape)} where the model's description asks "
                f"for {list(self._shapes[name])}: the file is damaged, get it again"
            )
        return values

    def layers(self) -> list[Layer]:
        """All layers, decoded on as many threads as there are workers."""
        loaded: dict[int, Layer] = {}

        def load(i: int) -> None:
            loaded[i] = self._layer(i)

        self._workers.run([partial(load, i) for i in range(self._spec.layers)])
        return [loaded[i] for i in range(self._spec.layers)]

    def _layer(self, i: int) -> Layer:
        spec = self._spec
        return Layer(
            attn_norm=self.tensor(f"layers.{i}.attn_norm"),
            qkv=self._linear(i, "q", "k", "v"),
            q_norm=self.tensor(f"layers.{i}.q_norm") if spec.qk_norm else None,
            k_norm=self.tensor(f"layers.{i}.k_norm") if spec.qk_norm else None,
            o=self._linear(i, "o"),
            post_attn_norm=self.tensor(f"layers.{i}.post_attn_norm") if spec.post_norms else None,
            ffn_norm=self.tensor(f"layers.{i}.ffn_norm"),
            gate_up=self._linear(i, "gate", "up"),
            down=self._linear(i, "down"),
            post_ffn_norm=self.tensor(f"layers.{i}.post_ffn_norm") if spec.post_norms else None,
        )

    def _linear(self, i: int, *names: str) -> Linear:
        weights = [self.tensor(f"layers.{i}.{name}") for name in names]
        whole = weights[0] if len(weights) == 1 else np.concatenate(weights)
        return Linear(whole, self._bias(i, *names), workers=self._workers)

    def _bias(self, i: int, *names: str) -> Floats | None:
        """Biases end to end, zero where only some of the parts have one; None where none has."""
        if not any(f"layers.{i}.{name}_bias" in self._tensors for name in names):
            return None
        parts = []
        for name in names:
            bias = f"layers.{i}.{name}_bias"
            size = self._shapes[bias]
            parts.append(self.tensor(bias) if bias in self._tensors else np.zeros(size, np.float32))
        return np.concatenate(parts)


class Dequantized(Mapping[str, Floats]):
    """The tensors of a file as fp32, decoded anew each time one is asked for."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> Floats:
        return self._tensors[name].dequantize()

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
