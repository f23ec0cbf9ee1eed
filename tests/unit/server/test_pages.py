"""The page's files, and the policy that they are under. What the page does is tested in a browser (tests/e2e/test_page.py)."""

from __future__ import annotations

import re

import pytest

from forerun.server.pages import FOLDER
from tests.serving import Client

FILES = sorted(path.name for path in FOLDER.iterdir())


@pytest.mark.parametrize("path", ["/", *(f"/page/{name}" for name in FILES)])
def test_nothing_may_be_loaded_from_elsewhere(client: Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert set(policy.values()) == {"'none'", "'self'"}
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", answer.text)


def test_the_page_loads_files_that_are_there(client: Client) -> None:
    page = client.get("/").text
    assert set(re.findall(r'(?:src|href)="page/([^"]+)"', page)) <= set(FILES)
    assert not re.search(r"<script(?![^>]* src=)|<style| style=| on[a-z]+=", page)
    for name in FILES:
        if name.endswith(".js"):
            assert client.get(f"/page/{name}").headers["content-type"].startswith("text/javascript")
            imports = re.findall(r'from "\./([^"]+)"', (FOLDER / name).read_text("utf-8"))
            assert set(imports) <= set(FILES)


def test_what_is_not_a_file_of_the_page_is_not_there(client: Client) -> None:
    assert client.get("/page/nothing.js").status_code == 404
    assert client.get("/page/..%2fpages.py").status_code == 404
