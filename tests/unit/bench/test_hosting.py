"""A server that is started to be measured ends with whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("uvicorn")

# Who starts the tests in the background may have them ignore Ctrl-C, which processes inherit.
SCRIPT = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from forerun.bench.hosting import hosted
with hosted(["--model", "toy"], ["a-key"]) as server:
    print(server.pid, flush=True)
    time.sleep(60)
"""


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_benchmark_ends_its_server(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        server = int(process.stdout.readline())
        assert lives(server)
        process.send_signal(number)
        assert process.wait(60) != 0
    until = time.monotonic() + 30
    while lives(server) and time.monotonic() < until:
        time.sleep(0.05)
    assert not lives(server)
