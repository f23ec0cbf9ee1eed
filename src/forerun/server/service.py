"""What all endpoints share: the model, its queue, its metrics, and the requests that are being answered."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.to_thread
from fastapi import Request

from forerun.server.errors import ApiError
from forerun.server.metrics import Metrics
from forerun.server.prompts import Choice, Limits
from forerun.server.running import Run
from forerun.server.settings import Settings
from forerun.server.tenants import Keys, Tenant
from forerun.server.turns import Turns

if TYPE_CHECKING:
    from forerun.llm import LLM

_log = logging.getLogger("forerun.server")
T = TypeVar("T")

# Threads that read prompts.
_READERS = 2
_STOPPING = "the server is shutting down; ask another one, or later."


class Service:
    """One model on offer. Its methods are called on the event loop."""

    def __init__(self, llm: LLM, settings: Settings) -> None:
        self.llm, self.settings = llm, settings
        self.assembly = llm.assembly
        self.keys = Keys(settings.keys, separate=settings.separate)
        self.turns = Turns(self.assembly.max_sequences, settings.max_queue, settings.max_tokens_in_flight)
        self.metrics = Metrics(self.assembly, self.turns)
        self.started = int(time.time())
        self.stopping = False
        self._runs: set[Run] = set()
        self._threads: dict[str, anyio.CapacityLimiter] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """What the model may be called."""
        return (self.assembly.model, *self.settings.names)

    def check_name(self, name: str | None) -> None:
        """Raises ApiError 404 for a model that is not this one."""
        if name is not None and name not in self.names:
            raise ApiError(
                404,
                f"there is no model {name[:80]!r} here; there is {', '.join(self.names)}.",
                param="model",
                code="model_not_found",
            )

    async def start(self, tenant: Tenant, count: int, prepare: Callable[[LLM, Limits], list[Choice]]) -> Run:
        """A run of what `prepare` makes on a thread, in the queue from now on.

        count: choices to come. Raises ApiError, or what `prepare` raises.
        """
        place = self.turns.join(tenant.name, count)
        try:
            limits = Limits(self.settings.max_tokens_per_request, tenant.memory)
            choices = await self.aside(lambda: prepare(self.llm, limits))
            self._check_size(choices)
        except BaseException:
            place.leave()
            raise
        run = Run(self.llm.worker, self.assembly, self.metrics, place, choices)
        self._runs.add(run)
        run.on_close = self._runs.discard
        return run

    async def aside(self, work: Callable[[], T], *, files: bool = False) -> T:
        """What `work` returns, from a thread that may take its time. files: it reads or writes large files."""
        name, count = ("files", 1) if files else ("prompts", _READERS)
        if name not in self._threads:
            self._threads[name] = anyio.CapacityLimiter(count)
        return await anyio.to_thread.run_sync(work, limiter=self._threads[name])

    def stop(self) -> None:
        """Take no more requests; those that run go on."""
        if not self.stopping:
            self.stopping = True
            self.turns.close(ApiError(503, _STOPPING, code="stopping", headers={"Retry-After": "10"}))

    def abort(self) -> None:
        """End what runs; answers say `abort`."""
        self.stop()
        for run in list(self._runs):
            run.cancel()

    def _check_size(self, choices: list[Choice]) -> None:
        """Raises ApiError for a request that could never run beside nothing else."""
        most = self.settings.max_tokens_in_flight
        if most is None:
            return
        requests = [choice.asked.request for choice in choices]
        tokens = sum(len(request.prompt) + (request.sampling.max_tokens or 0) for request in requests)
        if tokens > most:
            raise ApiError(
                400, f"the request may take {tokens} tokens; this server holds {most} at once (--max-tokens-in-flight)."
            )


def service_of(request: Request) -> Service:
    """The service of the app that a request is for."""
    service: Service = request.app.state.service
    return service


def tenant_of(request: Request) -> Tenant:
    """Whoever a request is from."""
    tenant: Tenant = request.scope["forerun.tenant"]
    return tenant
