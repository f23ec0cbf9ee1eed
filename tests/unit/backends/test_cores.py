"""How many threads run, and what is said about more than there are cores."""

from __future__ import annotations

import pytest

from forerun.assembly.models import notes
from forerun.backends import cores
from forerun.config import Config


def test_more_threads_than_cores_are_cut_to_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cores.capped(10**4) == cores.usable_cores()
    monkeypatch.setattr(cores, "usable_cores", lambda: 4)
    assert [cores.capped(threads) for threads in (None, 1, 4, 5)] == [None, 1, 4, 4]


def test_a_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "usable_cores", lambda: 4)
    assert notes(Config(threads=1000), "cpu") == ("1000 threads are more than there are cores to use here; 4 run.",)
    assert notes(Config(threads=4), "cpu") == notes(Config(), "cpu") == ()
