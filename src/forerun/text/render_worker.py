"""A process that renders one chat template: started by `text.template`, as `python -m forerun.text.render_worker`.

The first request is the template's source; the answer, which strings and names it has in it. Each further request is an
object of variables; the answer, the text.
"""

from __future__ import annotations

from typing import Any

from forerun.confined.child import serve
from forerun.text.sandbox import Sandboxed


def main() -> None:
    """Serve one parent."""
    opened: list[Sandboxed] = []

    def answer(request: Any) -> Any:
        if opened:
            return opened[0].render(request)
        opened.append(Sandboxed(request))
        return {"strings": sorted(opened[0].strings), "names": sorted(opened[0].names)}

    serve(answer)


if __name__ == "__main__":
    main()
