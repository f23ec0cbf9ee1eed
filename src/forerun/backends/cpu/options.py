"""How the cpu backend runs a model: everything that may differ between two loads of the same file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from forerun.errors import UsageError


@dataclass(frozen=True)
class CpuOptions:
    """Settings of the cpu backend; none of `threads`, `isa` and `cache` changes a bit of the results.

    threads: the caller's thread included; None is one for each core that this process may use.
    kv_dtype: how keys and values are kept. kv_memory: bytes they may take, None is most of what is free at loading.
    quantize: turns fp32, fp16 and bf16 matrices into groups of 32 with 8 or 4 bits; None keeps what the file has.
    context: a smaller context than the model's.
    isa: `avx512`, `avx2`, `neon` or `portable`; None is FORERUN_ISA or else the best of this machine.
    cache: keep the repacked weights in a file, so that the next start maps them; `home` is its folder, None the user's.

    Raises UsageError for a value outside these.
    """

    threads: int | None = None
    kv_dtype: Literal["fp16", "fp32"] = "fp16"
    kv_memory: int | None = None
    quantize: Literal["w8", "w4"] | None = None
    context: int | None = None
    isa: str | None = None
    cache: bool = True
    home: Path | None = None

    def __post_init__(self) -> None:
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise UsageError(f"threads is {self.threads}; it must be from 1 to 1024.")
        if self.kv_dtype not in ("fp16", "fp32"):
            raise UsageError(f"kv_dtype is {self.kv_dtype!r}; it must be fp16 or fp32.")
        if self.quantize not in (None, "w8", "w4"):
            raise UsageError(f"quantize is {self.quantize!r}; it must be w8 or w4.")
        if self.kv_memory is not None and self.kv_memory < 1:
            raise UsageError(f"kv_memory is {self.kv_memory} bytes; it must be positive.")
        if self.context is not None and self.context < 1:
            raise UsageError(f"context is {self.context}; it must be at least 1.")


def free_memory() -> int | None:
    """Bytes that could be taken without swapping, where the system tells."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None
