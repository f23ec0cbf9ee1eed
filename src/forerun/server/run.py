"""Runs a server until it is told to stop: uvicorn, with patience for nobody and time for running requests to finish."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Generator
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from forerun.errors import UsageError
from forerun.server.app import create_app
from forerun.server.service import Service
from forerun.server.settings import Settings

if TYPE_CHECKING:
    from forerun.llm import LLM

_log = logging.getLogger("forerun.server")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Seconds that connections get to send what is left once answers were ended.
_LAST_WORDS = 5
_LONGEST_HEADERS = 32 * 1024


class Server(uvicorn.Server):
    """One server. The first signal lets what runs finish, within a limit; the second ends at once."""

    def __init__(self, llm: LLM, settings: Settings) -> None:
        app = create_app(llm, settings)
        self.service: Service = app.state.service
        self._limit = settings.shutdown_timeout
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                http=_protocol(settings.header_timeout),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                h11_max_incomplete_event_size=_LONGEST_HEADERS,
                timeout_graceful_shutdown=int(self._limit) + _LAST_WORDS,
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.service.stop()
        loop = asyncio.get_running_loop()
        end = loop.call_later(self._limit, self.service.abort)
        try:
            await super().shutdown(sockets)
        finally:
            end.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Listen to signals while the server runs; what it was told by them is done when it returns."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.should_exit:
            # Whatever hangs must not keep us: a step that is being made, or a client that reads nothing.
            os._exit(128 + sig)
        self.should_exit = True


def serve(llm: LLM, settings: Settings) -> None:
    """Serve until a signal says to stop. Raises UsageError where the address cannot be had."""
    with listening(settings) as found:
        host, port = found.getsockname()[:2]
        _log.info(
            "serving %s at http://%s:%s, drafting with %s",
            llm.assembly.model,
            f"[{host}]" if ":" in host else host,
            port,
            llm.assembly.draft,
            extra={"fields": {"event": "ready", "host": host, "port": port}},
        )
        Server(llm, settings).run([found])
    _log.info("stopped", extra={"fields": {"event": "stopped"}})


@contextlib.contextmanager
def listening(settings: Settings) -> Generator[socket.socket, None, None]:
    """A socket at the address of the settings. Raises UsageError where it cannot be had."""
    host, port = settings.host, settings.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        found = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise UsageError(
            f"{host}:{port} cannot be had ({(error.strerror or str(error)).lower()}); choose another --host or --port."
        ) from None
    with found:
        yield found


def _protocol(seconds: float) -> type[H11Protocol]:
    """uvicorn's protocol, with a limit to how long a request's headers may take: a client that sends them byte by byte would
    hold its connection for ever."""

    class Impatient(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            if self._deadline is None and (self.cycle is None or self.cycle.response_complete):
                self._wait()
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop_waiting()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _wait(self) -> None:
            self._deadline = self.loop.call_later(seconds, self._give_up)

        def _stop_waiting(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _give_up(self) -> None:
            self._deadline = None
            if not self.transport.is_closing():
                self.transport.close()

    return Impatient
