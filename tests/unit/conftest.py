"""The same small random decoder as a Hugging Face folder and as a GGUF file, and files that can be damaged."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

Array = NDArray[np.float32]

CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}
GGUF_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
}


@dataclass
class Tiny:
    """A decoder of two or more layers with random weights, by Hugging Face's names."""

    architecture: str
    config: dict[str, Any]
    state: dict[str, Array] = field(repr=False)

    def write_folder(
        self, folder: Path, *, dtype: str = "F32", shards: int = 1, config: dict[str, Any] | None = None
    ) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        merged = {key: value for key, value in (self.config | (config or {})).items() if value is not ...}
        (folder / "config.json").write_text(json.dumps(merged))
        if shards == 1:
            write_safetensors(folder / "model.safetensors", self.state, dtype)
            return folder
        names = list(self.state)
        files = {name: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(names)}
        for file in sorted(set(files.values())):
            write_safetensors(folder / file, {n: self.state[n] for n in names if files[n] == file}, dtype)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
        return folder

    def write_gguf(self, path: Path, *, kind: str = "F32", keys: dict[str, Any] | None = None, **changes: Any) -> Path:
        """keys: key-values on top, without the architecture's prefix if they start with a dot; `...` leaves one out.
        extra: more tensors. leave_out: names of tensors to leave out. split: tensors a file, of which there are several;
        the first is returned.
        """
        arch, config = self.architecture, self.config
        values: dict[str, Any] = {
            "general.name": "tiny",
            ".context_length": config["max_position_embeddings"],
            ".embedding_length": config["hidden_size"],
            ".block_count": config["num_hidden_layers"],
            ".feed_forward_length": config["intermediate_size"],
            ".attention.head_count": config["num_attention_heads"],
            ".attention.head_count_kv": config["num_key_value_heads"],
            ".attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
            ".rope.freq_base": float(config["rope_theta"]),
            ".attention.key_length": config["head_dim"],
            ".attention.value_length": config["head_dim"],
        }
        if arch == "gemma3":
            values[".attention.sliding_window"] = config["sliding_window"]
        writer = gguf.GGUFWriter(path, arch, split_max_tensors=changes.get("split", 0))
        for key, value in (values | (keys or {})).items():
            if value is not ...:
                _add(writer, f"{arch}{key}" if key.startswith(".") else key, value)
        tensors = {self.gguf_name(name): (name, array) for name, array in self.state.items()}
        for name, (original, array) in tensors.items():
            if name not in changes.get("leave_out", ()):
                self._add_tensor(writer, name, original, array, kind)
        for name, array in changes.get("extra", {}).items():
            writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path if path.exists() else sorted(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))[0]

    def gguf_name(self, name: str) -> str:
        gemma = self.architecture == "gemma3"
        names = GGUF_NAMES | {"post_attention_layernorm": "post_attention_norm" if gemma else "ffn_norm"}
        for old, new in names.items():
            name = name.replace(old, new) if f"post_{old}" not in name else name
        return name

    def _add_tensor(self, writer: Any, name: str, original: str, array: Array, kind: str) -> None:
        if self.architecture in ("llama", "mistral") and ("q_proj" in original or "k_proj" in original):
            heads = self.config["num_attention_heads" if "q_proj" in original else "num_key_value_heads"]
            array = pair_rows(array, heads)
        if self.architecture == "gemma3" and name.endswith("norm.weight"):
            array = array + 1
        if kind == "F32" or array.ndim == 1:
            writer.add_tensor(name, array)
        else:
            encoding = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(name, gguf.quants.quantize(array, encoding), raw_dtype=encoding)


def pair_rows(array: Array, heads: int) -> Array:
    """Rows of each head reordered from halves to pairs: 0, half, 1, half + 1, ..."""
    head_dim = len(array) // heads
    order = [
        h * head_dim + part * head_dim // 2 + d for h in range(heads) for d in range(head_dim // 2) for part in (0, 1)
    ]
    return array[order]


def _add(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def write_safetensors(path: Path, tensors: dict[str, Array], dtype: str = "F32") -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blobs, at = [], 0
    for name, array in tensors.items():
        blob = encode(array, dtype)
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def encode(array: Array, dtype: str) -> bytes:
    if dtype == "BF16":
        return (array.view(np.uint32) >> 16).astype("<u2").tobytes()
    return array.astype({"F32": "<f4", "F16": "<f2", "F64": "<f8"}[dtype]).tobytes()


@pytest.fixture
def make_tiny() -> Callable[..., Tiny]:
    """`make_tiny(architecture, biases=False, tied=False, **config)`."""

    def make(architecture: str, *, biases: bool = False, tied: bool = False, **changes: Any) -> Tiny:
        config: dict[str, Any] = {
            "architectures": [CLASSES[architecture]],
            "vocab_size": 96,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32 if architecture in ("qwen3", "gemma3") else 16,
            "max_position_embeddings": 128,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500_000.0,
            "tie_word_embeddings": tied,
        }
        if architecture == "gemma3":
            config |= {"sliding_window": 8, "query_pre_attn_scalar": 32, "hidden_activation": "gelu_pytorch_tanh"}
        if architecture == "mistral":
            config |= {"sliding_window": None}
        config |= changes
        return Tiny(architecture, config, random_state(architecture, config, biases or architecture == "qwen2", tied))

    return make


def random_state(architecture: str, config: dict[str, Any], biases: bool, tied: bool) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    width, ffn, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], width)}
    norms = ["input_layernorm", "post_attention_layernorm"]
    norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] if architecture == "gemma3" else []
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        for norm in norms:
            shapes[f"{layer}.{norm}.weight"] = (width,)
        for name, size in (("q", queries), ("k", keys), ("v", keys)):
            shapes[f"{layer}.self_attn.{name}_proj.weight"] = (size, width)
            if biases:
                shapes[f"{layer}.self_attn.{name}_proj.bias"] = (size,)
        shapes[f"{layer}.self_attn.o_proj.weight"] = (width, queries)
        if architecture in ("qwen3", "gemma3"):
            shapes[f"{layer}.self_attn.q_norm.weight"] = shapes[f"{layer}.self_attn.k_norm.weight"] = (head_dim,)
        shapes[f"{layer}.mlp.gate_proj.weight"] = shapes[f"{layer}.mlp.up_proj.weight"] = (ffn, width)
        shapes[f"{layer}.mlp.down_proj.weight"] = (width, ffn)
    shapes["model.norm.weight"] = (width,)
    if not tied:
        shapes["lm_head.weight"] = (config["vocab_size"], width)
    return {name: rng.normal(size=shape).astype(np.float32) / math.sqrt(shape[-1]) for name, shape in shapes.items()}


@pytest.fixture
def data() -> Callable[[str], dict[str, Any]]:
    """A frozen fixture by name; each says where its expectations come from."""

    def load(name: str) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((Path(__file__).parent / "data" / name).read_text(encoding="utf-8"))
        assert loaded["provenance"]
        return loaded

    return load
