"""Writes copy_heavy.jsonl: 20 edits of real code, where most of the answer stands in the prompt.

The code is from CPython 3.11's standard library (PSF License Version 2, (c) Python Software Foundation), taken by
`inspect.getsource` from the interpreter that runs this; each line of the file names its module and function. The JSON
documents to translate are made here.
"""

from __future__ import annotations

import calendar
import colorsys
import fnmatch
import inspect
import json
import random
import shlex
import statistics
import string
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

RENAMES: list[tuple[Callable[..., Any], str, str]] = [
    (textwrap.shorten, "text", "paragraph"),
    (colorsys.rgb_to_hsv, "maxc", "largest"),
    (shlex.join, "split_command", "arguments"),
    (random.Random.shuffle, "x", "items"),
    (statistics.harmonic_mean, "data", "values"),
]
TYPED: list[Callable[..., Any]] = [
    colorsys.hsv_to_rgb,
    fnmatch.filter,
    calendar.monthrange,
    textwrap.indent,
    statistics.median_low,
]
# Function, its line as the prompt shows it (broken), and the line as it should be.
BROKEN: list[tuple[Callable[..., Any], str, str]] = [
    (statistics.median, "i = n // 2", "i = n // 3"),
    (calendar.isleap, "year % 400 == 0", "year % 40 == 0"),
    (colorsys.rgb_to_yiq, "0.30*r", "0.03*r"),
    (calendar.leapdays, "(y2//400 - y1//400)", "(y2//40 - y1//40)"),
    (string.capwords, "s.split(sep)", "s.split()"),
]


def source(function: Callable[..., Any]) -> str:
    return textwrap.dedent(inspect.getsource(function)).rstrip()


def origin(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def documents() -> list[dict[str, Any]]:
    """Five JSON documents of the kind that people translate."""
    chance = random.Random(7)
    names = ["api", "worker", "cache", "proxy", "metrics"]
    made = []
    for index in range(5):
        services = {
            name: {
                "image": f"registry.example/{name}:{chance.randint(1, 9)}.{chance.randint(0, 20)}",
                "replicas": chance.randint(1, 5),
                "ports": [chance.randint(3000, 9000), chance.randint(3000, 9000)],
                "environment": {
                    "LOG_LEVEL": chance.choice(["info", "debug"]),
                    "REGION": f"zone-{chance.randint(1, 4)}",
                },
            }
            for name in chance.sample(names, 3)
        }
        made.append({"version": index + 1, "project": f"shop-{index}", "services": services})
    return made


def prompts() -> list[dict[str, Any]]:
    made: list[tuple[str, str, str]] = []
    for function, old, new in RENAMES:
        made.append((
            "rename", origin(function),
            f"Rename `{old}` to `{new}` everywhere in this Python function and print the whole function, nothing else.\n\n"
            f"```python\n{source(function)}\n```",
        ))  # fmt: skip
    for function in TYPED:
        made.append((
            "type-hints", origin(function),
            "Add type hints to the parameters and the result of this Python function. Change nothing else and print the "
            f"whole function.\n\n```python\n{source(function)}\n```",
        ))  # fmt: skip
    for function, right, wrong in BROKEN:
        code = source(function)
        assert right in code, origin(function)
        made.append((
            "fix-line", origin(function),
            f"One line of this Python function is wrong: where it says `{wrong}` it should say `{right}`. Print the whole "
            f"function with that line fixed, nothing else.\n\n```python\n{code.replace(right, wrong, 1)}\n```",
        ))  # fmt: skip
    for document in documents():
        made.append((
            "json-to-yaml", "made for this file",
            f"Translate this JSON to YAML. Print only the YAML.\n\n```json\n{json.dumps(document, indent=2)}\n```",
        ))  # fmt: skip
    return [
        {"id": f"copy-{index:02d}", "category": f"copy-{kind}", "source": where, "prompt": text}
        for index, (kind, where, text) in enumerate(made)
    ]


if __name__ == "__main__":
    lines = [json.dumps(prompt, ensure_ascii=False) for prompt in prompts()]
    Path(__file__).with_name("copy_heavy.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
