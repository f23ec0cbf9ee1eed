from __future__ import annotations

import pytest

from forerun.cli.sizes import size
from forerun.errors import UsageError


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("2GiB", 2 << 30), ("512M", 512_000_000), ("1.5 GB", 1_500_000_000), ("64kib", 65536), ("100", 100), ("7b", 7)],
)
def test_sizes(text: str, bytes_: int) -> None:
    assert size(text, "--x") == bytes_


@pytest.mark.parametrize("text", ["", "much", "-1", "2ib", "1e9", "GiB"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--x"):
        size(text, "--x")
