"""`forerun serve`: OpenAI's API over one model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli import options, parameters
from forerun.cli.sizes import size
from forerun.errors import UsageError, unknown

if TYPE_CHECKING:
    from forerun.server import Key, Settings

_SERVER = "Server"
_LIMITS = "Limits"
_FORMATS = ("json", "text")
_LEVELS = ("debug", "info", "warning", "error")


def serve(
    command: typer.Context,
    model: options.Model = None,
    host: Annotated[str, typer.Option(help="The address to listen on.", rich_help_panel=_SERVER)] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes any that is free.", rich_help_panel=_SERVER)] = 8000,
    name: Annotated[
        list[str] | None,
        typer.Option(help="Another name that clients may call the model by. Repeatable.", rich_help_panel=_SERVER),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="FORERUN_API_KEY",
            show_envvar=True,
            help="The key that clients must have; the variable keeps it out of lists of processes.",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help="A file of keys, KEY or NAME:KEY on each line.", rich_help_panel=_SERVER),
    ] = None,
    share_memory: Annotated[
        bool,
        typer.Option("--share-memory", help="Let keys draft from one another's texts.", rich_help_panel=_SERVER),
    ] = False,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(help="A name that clients reach this machine by; * is any. Repeatable.", rich_help_panel=_SERVER),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="A web page of another place that may ask; * is any. Repeatable.", rich_help_panel=_SERVER),
    ] = None,
    log_requests: Annotated[
        bool, typer.Option("--log-requests", help="Write prompts and answers to the log.", rich_help_panel=_SERVER)
    ] = False,
    log_format: Annotated[
        str | None,
        typer.Option(help="json or text; json unless stderr is a terminal.", rich_help_panel=_SERVER),
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.", rich_help_panel=_SERVER)] = "info",
    max_batch: Annotated[int, typer.Option(help="Answers written at once.", rich_help_panel=_LIMITS)] = 8,
    max_queue: Annotated[int, typer.Option(help="Requests that may wait.", rich_help_panel=_LIMITS)] = 64,
    max_context: Annotated[
        int | None,
        typer.Option(help="Most tokens of prompt and answer; the model's own unless said.", rich_help_panel=_LIMITS),
    ] = None,
    max_tokens_per_request: Annotated[
        int | None, typer.Option(help="Most tokens of an answer.", rich_help_panel=_LIMITS)
    ] = None,
    max_tokens_in_flight: Annotated[
        int | None,
        typer.Option(help="Most tokens that all running requests may take together.", rich_help_panel=_LIMITS),
    ] = None,
    keep_prefixes: Annotated[
        int, typer.Option(help="Texts kept for prompts that start the same.", rich_help_panel=_LIMITS)
    ] = 64,
    prefill_slowdown: Annotated[
        float,
        typer.Option(
            help="How many times as long a step may take while a prompt is read beside it.", rich_help_panel=_LIMITS
        ),
    ] = 3.0,
    max_body: Annotated[str, typer.Option(help="Most bytes of a request.", rich_help_panel=_LIMITS)] = "16MiB",
    shutdown_timeout: Annotated[
        float, typer.Option(help="Seconds that running requests get to finish.", rich_help_panel=_LIMITS)
    ] = 30.0,
    stall_timeout: Annotated[
        float, typer.Option(help="Seconds after which a step counts as stuck.", rich_help_panel=_LIMITS)
    ] = 120.0,
    draft: options.Draft = "auto",
    other_draft: Annotated[
        list[str] | None,
        typer.Option(help="Another draft that requests may choose. Repeatable.", rich_help_panel="Speculation"),
    ] = None,
    num_speculative_tokens: options.SpeculativeTokens = None,
    verifier: options.Verifier = "keyed",
    cascade: options.Cascade = None,
    controller: options.Controller = "auto",
    memory: options.Memory = None,
    remember: options.Remember = "matrix",
    speculative_config: options.SpeculativeConfig = None,
    backend: options.Backend = "auto",
    threads: options.Threads = None,
    kv_dtype: options.KVDtype = None,
    kv_memory: options.KVMemory = None,
    quantize: options.Quantize = None,
) -> int:
    """Serve a model to many clients at once, with OpenAI's API.

    Clients change their base URL to http://127.0.0.1:8000/v1. Ctrl-C lets what runs finish; twice ends at once.
    """
    if log_format is not None and log_format not in _FORMATS:
        raise unknown("log format", log_format, _FORMATS)
    if log_level not in _LEVELS:
        raise unknown("log level", log_level, _LEVELS)
    try:
        from forerun.server import Key, Settings, read_keys, serve
        from forerun.server.logs import start
    except ModuleNotFoundError as error:
        raise UsageError(f"serving needs the package {error.name}; pip install 'forerun[serve]'.") from None

    keys: tuple[Key, ...] = () if api_key is None else (Key.of(api_key),)
    if api_key_file is not None:
        keys += read_keys(api_key_file)
    settings = Settings(
        host=host,
        port=port,
        keys=keys,
        share_memory=share_memory,
        names=tuple(name or ()),
        allowed_hosts=tuple(allowed_host or ()),
        cors_origins=tuple(cors_origin or ()),
        max_queue=max_queue,
        max_tokens_per_request=max_tokens_per_request,
        max_tokens_in_flight=max_tokens_in_flight,
        max_body=size(max_body, "--max-body"),
        shutdown_timeout=shutdown_timeout,
        stall_timeout=stall_timeout,
        log_requests=log_requests,
    )
    built = {
        "max_sequences": max_batch,
        "context": max_context,
        "keep_prefixes": keep_prefixes,
        "prefill_slowdown": prefill_slowdown,
        "other_drafts": other_draft,
    }
    start("json" if (log_format or ("text" if sys.stderr.isatty() else "json")) == "json" else "text", log_level)
    _warn(settings)
    with parameters.load(command.params, **built) as llm:
        serve(llm, settings)
    return 0


def _warn(settings: Settings) -> None:
    """Say what is easily overlooked."""
    import logging

    if settings.host not in ("127.0.0.1", "::1", "localhost") and not settings.keys:
        logging.getLogger("forerun.server").warning(
            "anybody who can reach %s may use this server; --api-key or --api-key-file asks for a key.", settings.host
        )
