"""A process that takes texts apart with one tokenizer.json: started by `tokenizers.engine.ConfinedEngine`.

The first request is the file's path. Each further one is a text and whether the strings of control tokens in it are such;
the answer, the ids.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forerun.confined.child import serve
from forerun.tokenizers.engine import LocalEngine, load


def main() -> None:
    """Serve one parent."""
    opened: list[LocalEngine] = []

    def answer(request: Any) -> Any:
        if opened:
            return opened[0].encode(*request)
        path = Path(request)
        opened.append(LocalEngine(load(path, path.read_text(encoding="utf-8"))))
        return None

    serve(answer)


if __name__ == "__main__":
    main()
