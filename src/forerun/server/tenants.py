"""Who asks: API keys, compared in constant time and never shown, and the memory that belongs to each."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.errors import UsageError


@dataclass(frozen=True)
class Key:
    """An API key under the name that logs show."""

    name: str
    secret: str = field(repr=False)

    @classmethod
    def of(cls, secret: str, name: str = "", where: str = "--api-key") -> Key:
        """A key, named by its digest unless it has a name. Raises UsageError where it cannot stand in a header."""
        if not secret or not secret.isascii() or not secret.isprintable() or " " in secret:
            raise UsageError(f"the API key of {where} is empty or holds more than plain characters; choose another.")
        return cls(name or f"key-{_digest(secret).hex()[:8]}", secret)


@dataclass(frozen=True)
class Tenant:
    """Whoever a request is from. name: for logs, empty without keys. memory: what it shares with others (core.request)."""

    name: str = ""
    memory: str = ""


class Keys:
    """All keys of a server. separate: whether each has a memory of its own."""

    def __init__(self, keys: Sequence[Key], *, separate: bool) -> None:
        self._known = [(_digest(key.secret), Tenant(key.name, f"key:{key.name}" if separate else "")) for key in keys]

    @property
    def wanted(self) -> bool:
        """Whether a request must have a key."""
        return bool(self._known)

    def tenant(self, authorization: str) -> Tenant | None:
        """Whose key an `Authorization` header holds; None for none that is known. Takes the same time for any key."""
        if not self._known:
            return Tenant()
        scheme, _, secret = authorization.partition(" ")
        given = _digest(secret.strip())
        found: Tenant | None = None
        for digest, tenant in self._known:
            if hmac.compare_digest(digest, given):
                found = tenant
        return found if scheme.lower() == "bearer" else None


def _digest(secret: str) -> bytes:
    return hashlib.blake2b(
        secret.encode("utf-8", "surrogateescape"), digest_size=32, person=b"forerun-api-key"
    ).digest()
