"""How a server is run: everything that is not about the model itself (config.Config)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from forerun.errors import UsageError, quoted
from forerun.server.tenants import Key

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Settings:
    """Raises UsageError for a value outside its range.

    keys: without any, nobody is asked for one. share_memory: whether requests of different keys may draft from one another's
        texts, and start from one another's prompts.
    names: what the model is called besides its own name.
    allowed_hosts: names that clients may use for this machine besides addresses, `localhost` and its own; `*` is any.
    cors_origins: web pages of other places that may ask, such as `https://chat.example`; `*` is any.
    max_queue: requests that may wait for a place.
    max_tokens_per_request: most tokens of an answer. max_tokens_in_flight: most tokens, prompts and answers asked for, of the
        requests that run at once. None leaves it to the context and to the memory.
    max_body: bytes of a request. header_timeout, body_timeout: seconds in which they must arrive.
    shutdown_timeout: seconds that running requests get to finish. stall_timeout: a step that takes longer is a fault.
    log_requests: write prompts and answers to the log.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    keys: tuple[Key, ...] = ()
    share_memory: bool = False
    names: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_queue: int = 64
    max_tokens_per_request: int | None = None
    max_tokens_in_flight: int | None = None
    max_body: int = 16 * MEBIBYTE
    header_timeout: float = 10.0
    body_timeout: float = 60.0
    shutdown_timeout: float = 30.0
    stall_timeout: float = 120.0
    log_requests: bool = False

    def __post_init__(self) -> None:
        for name, least in _LEAST:
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{name} is {quoted(value)}; it must be at least {least}.")
        if not 0 <= self.port < 1 << 16:
            raise UsageError(f"port is {quoted(self.port)}; it must be between 0 (any that is free) and 65535.")
        for origin in self.cors_origins:
            scheme, _, rest = origin.partition("://")
            if origin != "*" and (scheme not in ("http", "https") or not rest or "/" in rest):
                raise UsageError(f"the origin {quoted(origin)} is not of the form https://chat.example.")
        if len({key.secret for key in self.keys}) < len(self.keys) or len({key.name for key in self.keys}) < len(
            self.keys
        ):
            raise UsageError("two API keys are the same, or have the same name; each needs its own.")

    @property
    def separate(self) -> bool:
        """Whether each key has a memory of its own."""
        return len(self.keys) > 1 and not self.share_memory


_LEAST: Sequence[tuple[str, float]] = (
    ("max_queue", 0),
    ("max_tokens_per_request", 1),
    ("max_tokens_in_flight", 1),
    ("max_body", 1024),
    ("header_timeout", 0.1),
    ("body_timeout", 0.1),
    ("shutdown_timeout", 0),
    ("stall_timeout", 1),
)


def read_keys(path: Path) -> tuple[Key, ...]:
    """Keys from a file: one on a line, `KEY` or `NAME:KEY`; empty lines and those that begin with `#` are left out.

    Raises UsageError where the file cannot be read, or holds none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"the API keys in {path} cannot be read ({error}); check the file.") from None
    keys = []
    for number, line in enumerate(map(str.strip, lines), start=1):
        if line and not line.startswith("#"):
            name, colon, secret = line.rpartition(":")
            keys.append(Key.of(secret.strip(), name.strip() if colon else "", f"{path} line {number}"))
    if not keys:
        raise UsageError(f"{path} holds no API key; write one on each line, or leave --api-key-file out.")
    return tuple(keys)
