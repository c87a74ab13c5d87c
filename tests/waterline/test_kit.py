"""The tools of these tests find what they are there to find, under the security policy of the page."""

from __future__ import annotations

import asyncio

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from .conftest import NewPage
from .kit import OPERATOR, VIEWER, Complaints, ServerProcess, axe, settled, too_wide
from .world import World

POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; require-trusted-types-for 'script'; trusted-types 'none'"
PAGE = (
    """<!doctype html><html lang="en"><head><title>t</title></head><body><main><h1>A page</h1>%s</main></body></html>"""
)


@pytest.fixture
def plain(new_page: NewPage) -> Page:
    """A page of no server: what `show` gives it, with a policy like that of Waterline."""
    return new_page(base_url="http://127.0.0.1")


def show(page: Page, body: str, script: str = "") -> None:
    def answer(route: Route) -> None:
        if route.request.url.endswith("/script.js"):
            route.fulfill(body=script, content_type="text/javascript")
        else:
            headers = {"Content-Security-Policy": POLICY, "Content-Type": "text/html"}
            route.fulfill(body=PAGE % (body + '<script src="/script.js"></script>'), headers=headers)

    page.context.route("**/*", answer)
    page.goto("/")


def test_a_good_page_has_no_complaints(plain: Page, complaints: Complaints) -> None:
    show(plain, "<p>fine</p>")
    expect(plain.get_by_text("fine")).to_be_visible()
    assert axe(plain) == []
    complaints.hear_all(plain.context)
    assert complaints.found == []


@pytest.mark.parametrize(
    ("body", "script", "said"),
    [
        ("", "console.error('broken')", "console: broken"),
        ("", "throw new Error('nobody catches this')", "exception: Error: nobody catches this"),
        ("", "Promise.reject(new Error('nobody waits for this'))", "exception: Error: nobody waits for this"),
        ("", "alert('hello')", "dialog: hello"),
        ("<script>hello()</script>", "", "policy: script-src-elem"),
        ("", "document.body.innerHTML = '<b>x</b>'", "policy: require-trusted-types-for"),
        ("<img alt='x' src='http://192.0.2.1/x.png'>", "", "policy: img-src"),
    ],
)
def test_what_is_wrong_with_a_page_is_heard(
    plain: Page, complaints: Complaints, body: str, script: str, said: str
) -> None:
    show(plain, body, script)
    complaints.hear_all(plain.context)
    assert any(said in complaint for complaint in complaints.found), complaints.found
    complaints.allow("")


def test_only_what_a_test_allows_is_forgiven(plain: Page, complaints: Complaints) -> None:
    complaints.allow("expected")
    show(plain, "", "console.error('expected'); console.error('other')")
    complaints.hear_all(plain.context)
    assert [complaint.split(" (")[0] for complaint in complaints.found] == ["console: other"]
    complaints.allow("other")
    assert complaints.found == []


def test_axe_names_the_rule_and_the_place(plain: Page) -> None:
    show(plain, "<img src='data:,'><button></button>")
    found = axe(plain)
    assert [line.split()[0] for line in sorted(found)] == ["button-name", "image-alt"]
    assert all("body > main" in line or "button" in line or "img" in line for line in found)
    assert axe(plain, within="h1") == []


def test_a_page_that_is_too_wide_is_measured(plain: Page) -> None:
    show(plain, "<p>" + "x" * 2000 + "</p>")
    assert too_wide(plain) > 1000
    show(plain, "<p>x</p>")
    assert too_wide(plain) == 0


def test_a_page_of_the_world_is_whole_when_it_has_settled(page: Page, world: World) -> None:
    settled(page, "/waterline/runs/welcome-1")
    assert page.url.startswith(world.url)
    assert page.get_by_role("heading", name="welcome-1").count() == 1
    assert all(line.count(":") for line in axe(page)), "axe runs under the policy of the server"


def test_other_code_may_use_asyncio_while_a_browser_stands(browser: Browser) -> None:
    assert browser.is_connected()
    assert asyncio.run(asyncio.sleep(0, "ran")) == "ran"


def test_a_server_comes_back_at_the_same_address(lone: ServerProcess) -> None:
    assert lone.get("/workflows")["workflows"] == []
    lone.kill()
    with lone.again() as again:
        assert again.url == lone.url
        assert again.get("/workflows")["workflows"] == []


def test_a_guarded_server_knows_who_asks(guarded: ServerProcess) -> None:
    assert guarded.call("GET", "/workflows/kept-1", token="guess").status_code == 401
    assert guarded.get("/workflows/kept-1", token=VIEWER)["status"] == "pending"
    assert guarded.call("POST", "/workflows/kept-1/pause", {}, token=VIEWER).status_code == 403
    assert guarded.call("POST", "/workflows/kept-1/pause", {}, token=OPERATOR).status_code == 200
    assert guarded.call("POST", "/workflows/kept-1/unpause", {}, token=OPERATOR).status_code == 200
    assert guarded.get("/tokens")["tokens"] == []
