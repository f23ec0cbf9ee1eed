"""The cpu backend: whole passes in a compiled core, on the weights as the file holds them, the same bits every time."""

from forerun.backends.cpu.model import CpuModel, missing_core

__all__ = ["CpuModel", "missing_core"]
