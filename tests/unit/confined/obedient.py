"""A child that does what it is asked to, good or bad; run by test_worker.py."""

from __future__ import annotations

import os
import sys
from typing import Any

from forerun.confined.child import serve
from forerun.errors import BackendError, PromptError


def answer(request: Any) -> Any:
    match request:
        case {"echo": value}:
            return value
        case {"print": text}:
            print(text)
            sys.stdout.flush()
            return "printed"
        case {"allocate": size}:
            return len(bytearray(size))
        case {"say": size}:
            return "x" * size
        case {"refuse": message}:
            raise PromptError(message)
        case {"fail": message}:
            raise BackendError(message)
        case {"exit": status}:
            os._exit(status)
        case "pid":
            return os.getpid()
        case "spin":
            while True:
                pass
        case "bug":
            raise KeyError("a bug")
    return None


if __name__ == "__main__":
    serve(answer)
