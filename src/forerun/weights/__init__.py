"""Model files: one description of a decoder and its tokenizer, whatever the file's format."""

from __future__ import annotations

from pathlib import Path

from forerun.errors import ModelFileError, UnsupportedModelError
from forerun.weights.shards import files_of, shards_of
from forerun.weights.spec import RopeScaling, Spec
from forerun.weights.tensors import Tensor, Weights

__all__ = ["RopeScaling", "Spec", "Tensor", "Weights", "files_of", "model_file", "open_weights"]


def model_file(path: str | Path) -> Path:
    """The GGUF file, or the Hugging Face folder, that `path` means: a folder with a single GGUF file means that file.

    A part of a split GGUF means the first part.

    Raises ModelFileError where there is nothing of the kind, UnsupportedModelError for other formats.
    """
    path = Path(path)
    if path.is_dir():
        if (path / "config.json").exists():
            return path
        files = sorted({shards_of(file)[0] for file in path.glob("*.gguf")})
        if len(files) == 1:
            return files[0]
        found = f"{len(files)} .gguf files, give one of them" if files else "neither config.json nor a .gguf file"
        raise ModelFileError(f"{path}: the folder holds {found}")
    if not path.exists():
        raise ModelFileError(f"{path}: no such file or folder: check the path, or pull the model first")
    if path.suffix == ".safetensors":
        raise UnsupportedModelError(
            f"{path}: weights alone do not describe a model: give the folder that holds config.json"
        )
    first = shards_of(path)[0]
    return first if first.exists() else path


def open_weights(path: str | Path) -> Weights:
    """Opens a GGUF file or a Hugging Face folder (config.json and safetensors); tensors stay mapped into memory.

    Raises ModelFileError for a missing, truncated or damaged file, and UnsupportedModelError for an architecture, a
    setting or an encoding that forerun does not run.
    """
    path = model_file(path)
    if path.is_dir():
        from forerun.weights.hf_folder import open_folder

        return open_folder(path)
    from forerun.weights.gguf_file import open_gguf

    return open_gguf(path)
