"""Arguments that are texts."""

from __future__ import annotations

import os

import pytest

from forerun.cli.options import as_text, as_texts
from forerun.errors import UsageError


def test_bytes_that_the_locale_could_not_read_are_utf8() -> None:
    # What Python makes of the UTF-8 bytes of é where the locale is ASCII.
    escaped = "caf\udcc3\udca9"
    assert os.fsencode(escaped) == "café".encode()
    assert as_text(escaped) == as_text("café") == "café"
    assert as_texts([escaped, "b"]) == ["café", "b"]
    assert (as_text(None), as_texts(None), as_text("")) == (None, None, "")


@pytest.mark.parametrize("text", ["caf\udce9", "\ud83d"])
def test_bytes_that_are_no_text_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not UTF-8 text; convert it"):
        as_text(text)
