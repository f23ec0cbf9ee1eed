"""Tensors decode to the numbers that the gguf package decodes."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from forerun.errors import UnsupportedModelError
from forerun.weights import Tensor
from forerun.weights.gguf_file import BLOCKS, PLAIN


@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_decode_as_the_gguf_package_does(kind: str) -> None:
    encoding = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[encoding]
    stored = np.random.default_rng(1).integers(0, 120, (3, 2 * size), dtype=np.uint8)
    tensor = Tensor("x", (3, 2 * block), kind, stored)
    values = tensor.dequantize()
    assert values.shape == (3, 2 * block)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, gguf.quants.dequantize(stored, encoding))
    assert tensor.nbytes == stored.size


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_plain_numbers(kind: str, shape: tuple[int, ...]) -> None:
    values = np.array([0.0, -0.5, 1.5, 3.0, -65504.0, 2.0**-14], np.float32).reshape(shape)
    raws: dict[str, NDArray[Any]] = {
        "F32": values,
        "F16": values.astype(np.float16),
        "BF16": (values.view(np.uint32) >> 16).astype(np.uint16),
    }
    rows = shape[0] if len(shape) == 2 else 1
    decoded = Tensor("x", shape, kind, raws[kind].reshape(rows, -1).view(np.uint8)).dequantize()
    assert decoded.shape == shape
    np.testing.assert_allclose(decoded, values, rtol=2**-8 if kind == "BF16" else 0)


@pytest.mark.parametrize("kind", ["Q8_K", "I32", "NEW"])
def test_what_cannot_be_decoded_is_named(kind: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"tensor x is stored as {kind}"):
        Tensor("x", (1, 4), kind, np.zeros((1, 16), np.uint8)).dequantize()
