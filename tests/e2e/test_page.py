"""The page at `/`, in a browser without a window: two answers, colors, the tree, keys, errors, and how it looks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forerun.llm import LLM
from forerun.server.tenants import Key
from tests.serving import Client, serving, toy

pytest.importorskip("fastapi")
sync_api = pytest.importorskip(
    "playwright.sync_api", reason="the page is tested with playwright, which is not installed"
)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PROMPT = "Count: one two three four, one two three four, one two three four. Repeat it three times."
CODE = "Write a Python class for a stack, then the same class again with type annotations."
# Where pictures of the page go, to be looked at; nowhere unless set.
PICTURES = os.environ.get("FORERUN_PAGE_PICTURES")
WAIT = 120_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH (Debian: apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def smol() -> Iterator[Client]:
    with LLM.load("smollm2-135m", other_drafts=["ngram"], remember="nothing") as llm, serving(llm) as client:
        yield client


@pytest.fixture(scope="module")
def drafting() -> Iterator[Client]:
    """A server whose clock does not decide what is drafted."""
    options: dict[str, Any] = {"num_speculative_tokens": 7, "remember": "nothing"}
    with LLM.load("smollm2-135m", **options) as llm, serving(llm) as client:
        yield client


@pytest.fixture(scope="module")
def small() -> Iterator[Client]:
    with toy() as llm, serving(llm) as client:
        yield client


@pytest.fixture
def new_page(browser: Any) -> Iterator[Any]:
    """Opens the page of a server; whatever goes wrong in its scripts, or against its policy, fails the test."""
    contexts, complaints = list[Any](), list[str]()

    def opened(client: Client, width: int = 1280, height: int = 900, **options: Any) -> Any:
        contexts.append(browser.new_context(viewport={"width": width, "height": height}, **options))
        page = contexts[-1].new_page()
        page.set_default_timeout(WAIT)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if _is_complaint(said) else None)
        page.goto(str(client.base_url))
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def _is_complaint(said: Any) -> bool:
    # The browser itself notes answers that are not 200; the tests look at what the page makes of them.
    return said.type == "error" and "Failed to load resource" not in said.text


def ask(page: Any, text: str = PROMPT, **settings: Any) -> None:
    page.locator("#settings > summary").click()
    for name, value in settings.items():
        page.locator(f"#{name.replace('_', '-')}").fill(str(value))
    page.locator("#settings > summary").click()
    page.locator("#prompt").fill(text)
    page.locator("#prompt").press("Control+Enter")


def done(page: Any) -> None:
    page.locator(".turn:last-child .verdict:not(:empty)").wait_for()


def texts(page: Any) -> tuple[str, str]:
    turn = page.locator(".turn").last
    return turn.locator(".speculative .text").text_content(), turn.locator(".plain .text").text_content()


def picture(page: Any, name: str) -> None:
    if PICTURES is not None:
        page.screenshot(path=Path(PICTURES) / f"{name}.png")


@pytest.mark.models
@pytest.mark.parametrize("temperature", [0, 0.8])
def test_both_answers_are_equal_and_colored(drafting: Client, new_page: Any, temperature: float) -> None:
    page = new_page(drafting)
    ask(page, temperature=temperature, seed=5, max_tokens=60)
    done(page)
    speculative, plain = texts(page)
    assert len(speculative) > 20
    assert speculative == plain
    # What the page shows is what the server says to any other client.
    told = drafting.chat(PROMPT, temperature=temperature, seed=5, max_tokens=60, speculation={"enabled": False})
    assert plain == told["choices"][0]["message"]["content"]
    assert "Same text" in page.locator(".verdict").text_content()
    drafted, own = page.locator(".speculative .token.from"), page.locator(".speculative .token.own")
    assert drafted.count() > 0
    assert own.count() > 0
    assert page.locator(".plain .token.from").count() == 0
    look = "node => [getComputedStyle(node).backgroundColor, getComputedStyle(node).textDecorationLine]"
    assert drafted.first.evaluate(look)[0] != own.first.evaluate(look)[0]
    assert drafted.first.evaluate(look)[1] == "underline"
    assert own.first.evaluate(look)[1] == "none"
    assert page.locator("#prompt").input_value() == ""
    for plot in ("#rate-plot .line.plain", "#rate-plot .line.speculative", "#step-plot .bar.accepted"):
        page.locator(plot).first.wait_for(state="attached", timeout=20_000)
    assert page.locator("#cost").is_hidden()  # no controller here looks at costs
    assert "smollm2-135m" in page.locator("#facts").text_content()


@pytest.mark.models
def test_the_tree_comes_by_pointer_by_key_and_by_tap(drafting: Client, new_page: Any) -> None:
    page = new_page(drafting, has_touch=True)
    ask(page, temperature=0, max_tokens=60)
    done(page)
    inspector, nodes = page.locator("#inspector"), page.locator("#tree .node.kept")
    assert inspector.is_hidden()
    token = page.locator(".speculative .token.from").first
    token.hover()
    assert nodes.count() > 0
    assert "drafted by" in page.locator("#step-words").text_content()
    page.keyboard.press("Escape")
    assert inspector.is_hidden()
    token.tap()
    assert inspector.is_visible()
    page.locator("#close").click()
    page.locator(".speculative .token[tabindex='0']").focus()
    first = page.locator("#inspector-title").text_content()
    page.keyboard.press("End")
    assert page.locator("#inspector-title").text_content() != first
    assert page.locator(".speculative .token[tabindex='0']").count() == 1


@pytest.mark.models
@pytest.mark.parametrize(
    ("name", "width", "scheme"), [("desktop", 1280, "light"), ("dark", 1280, "dark"), ("phone", 360, "light")]
)
def test_it_fits_any_screen(smol: Client, new_page: Any, name: str, width: int, scheme: str) -> None:
    page = new_page(smol, width, 900 if width > 400 else 780, color_scheme=scheme)
    picture(page, f"{name}-empty")
    ask(page, CODE, temperature=0.3, seed=1, max_tokens=150)
    done(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    picture(page, name)
    page.locator("#cost-plot svg").wait_for()
    page.locator(".speculative .token").nth(9).hover()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    picture(page, f"{name}-tree")
    if width < 400:
        page.keyboard.press("Escape")
        page.locator("aside").scroll_into_view_if_needed()
        page.screenshot(path=Path(PICTURES) / f"{name}-whole.png", full_page=True) if PICTURES else None


def test_a_conversation_goes_on_and_starts_again(small: Client, new_page: Any) -> None:
    page = new_page(small)
    ask(page, "the drafter", temperature=0, max_tokens=12)
    done(page)
    first = texts(page)[1]
    asked: list[Any] = []
    page.on("request", lambda request: asked.append(request.post_data_json) if request.method == "POST" else None)
    ask(page, "and then", temperature=0, max_tokens=12)
    page.locator(".turn:nth-child(2) .verdict:not(:empty)").wait_for()
    assert [[one["content"] for one in body["messages"]] for body in asked] == 2 * [["the drafter", first, "and then"]]
    assert [body["speculation"]["enabled"] for body in asked] == [False, True]
    page.locator("#new").click()
    assert page.locator(".turn").count() == 0


def test_the_same_seed_is_drawn_for_both(small: Client, new_page: Any) -> None:
    page = new_page(small)
    ask(page, "the drafter", temperature=1, seed="", max_tokens=30)
    done(page)
    assert texts(page)[0] == texts(page)[1]


def test_errors_are_told_and_nothing_typed_is_lost(small: Client, new_page: Any) -> None:
    page = new_page(small)
    long = "the drafter " * 5000
    ask(page, long)
    done(page)
    assert str(small.llm.assembly.engine.context) in page.locator("#error").text_content()
    assert page.locator("#prompt").input_value() == long
    assert page.locator("#send").is_enabled()
    page.reload()
    assert page.locator("#prompt").input_value() == long
    page.locator("#prompt").fill("the drafter")
    page.route("**/v1/chat/completions", lambda route: route.abort())
    page.locator("#send").click()
    done(page)
    assert "cannot be reached" in page.locator("#error").text_content()
    page.unroute("**/v1/chat/completions")
    ask(page, "the drafter", max_tokens=5)
    page.locator(".turn:nth-child(2) .verdict.same").wait_for()
    assert page.locator("#error").is_hidden()


def test_a_setting_out_of_range_is_shown_where_it_is(small: Client, new_page: Any) -> None:
    page = new_page(small)
    ask(page, "the drafter", temperature=7)
    assert page.locator("#temperature").is_visible()
    assert page.locator(".turn").count() == 0


def test_stop_ends_the_answer_and_keeps_the_message(new_page: Any) -> None:
    with toy(step_s=0.02) as llm, serving(llm) as client:
        page = new_page(client)
        ask(page, "the drafter", max_tokens=2000)
        page.locator(".plain .token").first.wait_for(state="attached")
        page.locator("#stop").click()
        done(page)
        assert "Stopped" in page.locator(".verdict").text_content()
        assert page.locator("#prompt").input_value() == "the drafter"
        assert page.locator("#stop").is_hidden()


def test_a_key_is_asked_for_and_kept_in_the_tab(new_page: Any) -> None:
    with toy() as llm, serving(llm, keys=(Key("one", "secret"),)) as client:
        page = new_page(client)
        page.locator("#key-form").wait_for()
        page.locator("#key").fill("wrong")
        page.locator("#key").press("Enter")
        page.locator("#error:not([hidden])").wait_for()
        page.locator("#key").fill("secret")
        page.locator("#key").press("Enter")
        page.locator("#key-form").wait_for(state="hidden")
        ask(page, "the drafter", max_tokens=5)
        page.locator(".verdict.same").wait_for()
        assert page.evaluate("localStorage.length") == 0
        assert "secret" not in page.context.cookies().__repr__()
