"""A server to measure: started as a process of its own on loopback, with a key for each memory, and ended afterwards."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from forerun.bench.streams import Address
from forerun.errors import BackendError

# Seconds that a server gets to stop by itself.
_PATIENCE = 30.0


@dataclass(frozen=True)
class Hosted:
    """A server that was started here. pid: of its process."""

    address: Address
    pid: int


@contextlib.contextmanager
def hosted(arguments: Sequence[str], keys: Sequence[str]) -> Iterator[Hosted]:
    """`forerun serve ARGUMENTS` on any free port, for these API keys: each has drafters' memory and prefixes of its own.

    Raises BackendError where the server does not start.
    """
    with tempfile.TemporaryDirectory() as folder, _ends_by_sigterm():
        file = Path(folder) / "keys"
        file.write_text("".join(f"key-{index}:{key}\n" for index, key in enumerate(keys)), encoding="utf-8")
        listening = ("--port", "0", "--api-key-file", str(file), "--log-format", "json")
        command = [sys.executable, "-m", "forerun.cli", "serve", *arguments, *listening]
        # The key of the user's own server is none of this one.
        environment = {name: value for name, value in os.environ.items() if name != "FORERUN_API_KEY"}
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        log = _Log(process)
        try:
            yield Hosted(log.address(), process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            log.close()


@contextlib.contextmanager
def _ends_by_sigterm() -> Iterator[None]:
    """SIGTERM ends this process as Ctrl-C does: by leaving its blocks, so that no server is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Log:
    """Reads what a server writes to stderr, so that it never has to wait for that."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._last: deque[str] = deque(maxlen=5)
        self._found: Address | None = None
        self._settled = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def address(self) -> Address:
        """Where the server listens, once it does. Raises BackendError where it ends instead."""
        self._settled.wait()
        if self._found is None:
            raise BackendError(f"the server to measure did not start: {' '.join(self._last) or 'it said nothing'}")
        return self._found

    def close(self) -> None:
        self._thread.join()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if self._settled.is_set():
                continue
            self._last.append(line.strip())
            with contextlib.suppress(ValueError, AttributeError):
                told = json.loads(line)
                if told.get("event") == "ready":
                    self._found = Address("127.0.0.1", int(told["port"]))
                    self._settled.set()
        self._settled.set()


def cpu_seconds(pid: int) -> float:
    """Processor time that a process and its threads have taken; not a number where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return math.nan


def all_cpu_seconds() -> float:
    """Processor time that everything on this machine has taken; not a number where the system does not tell."""
    try:
        fields = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:9]
        user, nice, system, _, _, irq, soft, steal = map(int, fields)
        return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return math.nan
