"""/tokenize, /detokenize and /apply-template: what the model will read."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from forerun.llm import LLM
from forerun.server.bodies import JsonRoute
from forerun.server.errors import ApiError
from forerun.server.prompts import conversation_ids, messages_of, rendering
from forerun.server.schema.operation import ERRORS
from forerun.server.schema.texts import (
    DetokenizedText,
    DetokenizeRequest,
    Prompt,
    TemplateRequest,
    TokenizeRequest,
    Tokens,
)
from forerun.server.service import service_of

router = APIRouter(route_class=JsonRoute, tags=["Texts"], responses=ERRORS)


@router.post("/tokenize", response_model=None, responses={200: {"model": Tokens}})
async def tokenize(body: TokenizeRequest, request: Request) -> dict[str, Any]:
    """Token ids of a text or of a conversation."""
    service = service_of(request)
    service.check_name(body.model)
    ids = await service.aside(lambda: _ids(service.llm, body))
    told: dict[str, Any] = {"tokens": ids, "count": len(ids), "max_model_len": service.assembly.engine.context}
    if body.return_token_strs:
        told["token_strs"] = [service.assembly.tokenizer.id_to_token(token) for token in ids]
    return told


@router.post("/detokenize", response_model=None, responses={200: {"model": DetokenizedText}})
async def detokenize(body: DetokenizeRequest, request: Request) -> dict[str, Any]:
    """The text of token ids, control tokens spelled out."""
    service = service_of(request)
    service.check_name(body.model)
    tokenizer = service.assembly.tokenizer
    wrong = next((token for token in body.tokens if not 0 <= token < tokenizer.vocab_size), None)
    if wrong is not None:
        raise ApiError(
            400,
            f"{wrong} is no token of {service.assembly.model}, which has ids from 0 to {tokenizer.vocab_size - 1}.",
            param="tokens",
        )
    text = await service.aside(lambda: tokenizer.decode(body.tokens, skip_special=False))
    return {"prompt": text, "content": text}


@router.post("/apply-template", response_model=None, responses={200: {"model": Prompt}})
async def apply_template(body: TemplateRequest, request: Request) -> dict[str, Any]:
    """A conversation as the model's chat template renders it."""
    service = service_of(request)
    service.check_name(body.model)
    template = service.assembly.template
    if template is None:
        raise ApiError(400, f"{service.assembly.model} has no chat template (it is a base model).")
    text = await service.aside(lambda: template.render(messages_of(body), **rendering(body)))
    return {"prompt": text}


def _ids(llm: LLM, body: TokenizeRequest) -> list[int]:
    if body.messages is not None:
        return conversation_ids(llm.assembly, body, [message.plain() for message in body.messages])
    add_bos = None if body.add_special_tokens is not False else False
    return llm.assembly.tokenizer.encode(body.text, special=True, add_bos=add_bos)
