"""OpenAI's API over one model: many clients at once, one engine (`forerun serve`).

    app = create_app(LLM.load("smollm2-135m"), Settings(port=8080))     # any ASGI server runs it
    serve(llm, settings)                                                # or this, until it is told to stop

An event loop talks to clients; the engine runs on the thread of its worker, and the loop never waits for it.
"""

from __future__ import annotations

from forerun.server.app import create_app
from forerun.server.run import serve
from forerun.server.settings import Settings, read_keys
from forerun.server.tenants import Key

__all__ = ["Key", "Settings", "create_app", "read_keys", "serve"]
