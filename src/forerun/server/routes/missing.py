"""Endpoints that other servers have: each says what there is in its place."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter

from forerun.server.errors import ApiError

_CHAT = "use /v1/chat/completions"
_MISSING = {
    "/v1/responses": f"the Responses API is not offered; {_CHAT}.",
    "/v1/messages": f"Anthropic's API is not offered; {_CHAT}.",
    "/v1/embeddings": "this server writes text and makes no embeddings.",
    "/embeddings": "this server writes text and makes no embeddings.",
    "/v1/rerank": "this server writes text and ranks nothing.",
    "/rerank": "this server writes text and ranks nothing.",
    "/score": "this server writes text and scores no pairs; /v1/completions with echo and logprobs scores a text.",
    "/pooling": "this server writes text and pools nothing.",
    "/v1/moderations": "this server writes text and moderates none.",
    "/v1/audio": "this server reads and writes text only.",
    "/v1/images": "this server reads and writes text only.",
    "/v1/videos": "this server reads and writes text only.",
    "/v1/realtime": f"there are no realtime sessions; {_CHAT} with stream.",
    "/v1/files": "nothing is stored here; send the text itself.",
    "/v1/uploads": "nothing is stored here; send the text itself.",
    "/v1/batches": "there are no batch jobs; send the requests at once, they share the model's passes.",
    "/v1/fine_tuning": "models are not trained here.",
    "/v1/assistants": f"nothing is stored here; {_CHAT} with the whole conversation.",
    "/v1/threads": f"nothing is stored here; {_CHAT} with the whole conversation.",
    "/v1/conversations": f"nothing is stored here; {_CHAT} with the whole conversation.",
    "/v1/vector_stores": "nothing is stored here; send the text itself.",
    "/v1/containers": "no code is run here.",
    "/v1/evals": "nothing is stored here; `forerun bench` compares models.",
    "/v1/load_lora_adapter": "adapters cannot be loaded; start the server with another model.",
    "/v1/unload_lora_adapter": "adapters cannot be loaded; start the server with another model.",
    "/completion": "llama-server's own API is not offered; use /v1/completions.",
    "/completions": "the path is /v1/completions.",
    "/chat/completions": "the path is /v1/chat/completions.",
    "/infill": "llama-server's own API is not offered; use /v1/completions with suffix.",
    "/props": "llama-server's own API is not offered; /health tells what runs.",
    "/slots": "llama-server's own API is not offered; /health and /metrics tell what runs.",
    "/api": f"Ollama's API is not offered; {_CHAT}.",
}
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]

router = APIRouter(include_in_schema=False)


def _refusal(path: str, why: str) -> Callable[[], Coroutine[Any, Any, None]]:
    async def refuse() -> None:
        raise ApiError(501, f"{path}: {why}", code="not_implemented")

    return refuse


for _path, _why in _MISSING.items():
    for _route in (_path, f"{_path}/{{rest:path}}"):
        router.add_api_route(_route, _refusal(_path, _why), methods=_METHODS)
router.add_api_route(
    "/v1/chat/completions/{rest:path}",
    _refusal("/v1/chat/completions", "answers are not stored, so none can be fetched or changed."),
    methods=_METHODS,
)
