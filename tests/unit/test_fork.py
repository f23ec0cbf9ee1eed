"""In a fork of the process that loaded a model there is no engine: whoever asks there is told, and nothing hangs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_PROGRAM = """
import os, signal, sys
import forerun
from forerun.errors import BackendError

llm = forerun.LLM.load("toy", remember="nothing")
stream = llm.stream("the target reads", max_tokens=200)
next(stream)
child = os.fork()
if child == 0:
    signal.alarm(20)
    for use in (lambda: llm.generate("the target"), lambda: next(stream), lambda: llm.worker.call(int)):
        try:
            use()
            print("answered?", flush=True)
        except BackendError as error:
            print(error, flush=True)
    stream.close()
    llm.close()
    sys.exit(3)  # by way of everything that is done at exit
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print("parent", len(list(stream)) > 0, llm.generate("the target", max_tokens=4).finish_reason)
llm.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_is_told_to_load_the_model_itself_and_leaves_the_other_process_alone() -> None:
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", _PROGRAM], capture_output=True, text=True, timeout=60)
    lines = ran.stdout.splitlines()
    assert sum("was forked" in line and "load it" in line for line in lines) == 3, ran
    assert "answered?" not in ran.stdout, ran
    assert {"child 3", "parent True length"} <= set(lines), ran
