"""Opens a Hugging Face folder as `Weights`: config.json and one or several .safetensors files.

Weights stay in the file's bf16, fp16 or fp32. What a family's folders leave out of the norms' multipliers is added here.
"""

from __future__ import annotations

import gc
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from forerun.core.files import refuse_pointer
from forerun.errors import ModelFileError, UnsupportedModelError
from forerun.weights.architecture import ARCHITECTURES
from forerun.weights.hf_config import spec_from_config
from forerun.weights.layout import validate
from forerun.weights.safetensors_file import Entry, read_safetensors
from forerun.weights.spec import Spec
from forerun.weights.tensors import Tensor, Weights

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
LARGEST_JSON = 64 << 20
_GLOBAL = {"embed_tokens.weight": "embed", "norm.weight": "norm", "lm_head.weight": "head"}
_LAYER = {
    "input_layernorm.weight": "attn_norm",
    "self_attn.q_proj.weight": "q",
    "self_attn.k_proj.weight": "k",
    "self_attn.v_proj.weight": "v",
    "self_attn.o_proj.weight": "o",
    "self_attn.q_proj.bias": "q_bias",
    "self_attn.k_proj.bias": "k_bias",
    "self_attn.v_proj.bias": "v_bias",
    "self_attn.o_proj.bias": "o_bias",
    "self_attn.q_norm.weight": "q_norm",
    "self_attn.k_norm.weight": "k_norm",
    "mlp.gate_proj.weight": "gate",
    "mlp.up_proj.weight": "up",
    "mlp.down_proj.weight": "down",
}
_PRE_NORMS = {"post_attention_layernorm.weight": "ffn_norm"}
_AROUND_NORMS = {
    "post_attention_layernorm.weight": "post_attn_norm",
    "pre_feedforward_layernorm.weight": "ffn_norm",
    "post_feedforward_layernorm.weight": "post_ffn_norm",
}
_IN_LAYER = re.compile(r"layers\.(0|[1-9]\d{0,4})\.(.+)")
# The text model of a folder that also holds an image encoder, by any of the names that transformers has given it.
_PREFIX = re.compile(r"^(?:model\.language_model\.|language_model\.model\.|language_model\.|model\.)")
_IGNORED = re.compile(r"rotary_emb\.inv_freq$|vision_tower\.|multi_modal_projector\.")


def open_folder(folder: Path) -> Weights:
    """A Hugging Face folder as weights, mapped into memory. Raises ModelFileError or UnsupportedModelError."""
    config = read_json(folder / "config.json")
    spec = spec_from_config(config, folder)
    tensors = {}
    for path in _shards(folder):
        for entry in read_safetensors(path).values():
            if _IGNORED.search(entry.name):
                continue
            tensor = _tensor(entry, spec, path)
            if tensor.name == "head" and spec.tied:
                continue
            if tensor.name in tensors:
                raise ModelFileError(f"{path}: tensor {entry.name} is there twice: the folder mixes two models")
            tensors[tensor.name] = tensor
    return Weights(folder, "safetensors", spec, validate(spec, tensors, folder), config)


def read_json(path: Path, *, unique: bool = False) -> dict[str, Any]:
    """An object from a JSON file of a model folder. Raises ModelFileError.

    unique: no object may have a key twice, of which other readers might take the other.
    """
    # Else what a vocabulary has been read into is looked at for garbage over and over, half of the time.
    collects = gc.isenabled()
    gc.disable()
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise ModelFileError(f"{path}: is too large to be what its name says: download it again")
        text = path.read_bytes()
        refuse_pointer(path, text)
        value = json.loads(text, object_pairs_hook=_unique if unique else None)
    except FileNotFoundError as error:
        raise ModelFileError(f"{path}: is missing: the folder is incomplete, download it again") from error
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: is not JSON: the file is damaged, download it again") from error
    finally:
        if collects:
            gc.enable()
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: is not a JSON object: the file is damaged, download it again")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _shards(folder: Path) -> list[Path]:
    if (folder / INDEX).exists():
        names = read_json(folder / INDEX).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(n, str) and Path(n).name == n for n in names.values()):
            raise ModelFileError(f"{folder / INDEX}: has no usable weight_map: the file is damaged, download it again")
        files = [folder / name for name in sorted(set(names.values()))]
        missing = [file.name for file in files if not file.exists()]
        if missing:
            raise ModelFileError(f"{folder}: {missing[0]} is missing: the folder is incomplete, download it again")
        return files
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    if list(folder.glob("*.bin")):
        raise UnsupportedModelError(
            f"{folder}: holds only pickled weights, which can run code: save it again as safetensors"
        )
    raise ModelFileError(f"{folder}: holds no {SINGLE} and no {INDEX}: the folder is incomplete")


def _tensor(entry: Entry, spec: Spec, path: Path) -> Tensor:
    name = _canonical(entry.name, spec)
    if entry.dtype not in ("F32", "F16", "BF16"):
        raise UnsupportedModelError(
            f"{path}: tensor {entry.name} is stored as {entry.dtype}; F32, F16 and BF16 are read: use another folder, or GGUF"
        )
    if len(entry.shape) not in (1, 2):
        raise UnsupportedModelError(
            f"{path}: tensor {entry.name} has {len(entry.shape)} dimensions: choose another model"
        )
    tensor = Tensor(name, entry.shape, entry.dtype, entry.data)
    offset = ARCHITECTURES[spec.architecture].norm_offset
    if offset and name.endswith("norm"):
        multiplier = (tensor.dequantize() + np.float32(offset)).reshape(1, -1)
        return Tensor(name, entry.shape, "F32", multiplier.view(np.uint8))
    return tensor


def _canonical(name: str, spec: Spec) -> str:
    """The canonical name, or the file's own where there is none (`validate` then refuses it)."""
    short = _PREFIX.sub("", name)
    inside = _IN_LAYER.fullmatch(short)
    if inside is None:
        return _GLOBAL.get(short, name)
    part = (_LAYER | (_AROUND_NORMS if spec.post_norms else _PRE_NORMS)).get(inside[2])
    return f"layers.{inside[1]}.{part}" if part else name
