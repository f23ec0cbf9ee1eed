"""Measured cost curves kept between runs: a machine is measured once per model, backend and way to run it."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from pathlib import Path

from forerun.controllers.costs import CostCurve
from forerun.core.files import set_aside, writing

_FORMAT = 2


def machine() -> str:
    """What kind of processor this is, as far as the system tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


class Profile:
    """The file of one curve in a folder, named by everything that the curve depends on: first of all a model's stamp."""

    def __init__(self, folder: Path, *parts: object) -> None:
        self._parts = [machine(), *map(str, parts)]
        key = hashlib.sha256("\0".join([str(_FORMAT), *self._parts]).encode()).hexdigest()[:20]
        self.path = folder / f"{key}.json"

    def read(self) -> CostCurve | None:
        """The curve, None where none can be read; a damaged file is set aside with a warning and counts as none."""
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            return CostCurve({int(rows): float(seconds) for rows, seconds in data["seconds"].items()})
        except OSError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            set_aside(self.path, error)
            return None

    def write(self, seconds: Mapping[int, float]) -> None:
        """Keep measurements `{rows: seconds}`. Raises OSError."""
        with writing(self.path) as file:
            file.write(json.dumps({"format": _FORMAT, "of": self._parts, "seconds": seconds}).encode())
