"""What answers say becomes neither a link to elsewhere nor a command that does something else than it shows."""

from __future__ import annotations

import re
import shlex
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, Route, expect

from .conftest import NewPage
from .kit import ServerProcess, modules

QUEUE = "o'brien & $(touch x) `id`;"


@pytest.mark.parametrize(
    ("to", "kept"),
    [
        ("/waterline/runs", True),
        ("?tab=history", True),
        ("javascript:alert(1)", False),
        (" java\nscript:alert(1)", False),
        ("data:text/html,<script>alert(1)</script>", False),
        ("//elsewhere.example/x", False),
        ("\\\\elsewhere.example\\x", False),
        ("https://elsewhere.example/", False),
        ("http://[", False),
    ],
)
def test_a_link_stays_on_its_server(page: Page, to: str, kept: bool) -> None:
    page.goto("/waterline/")
    made = page.evaluate(
        """async ([base, to]) => {
            const { h, patch } = await import(base + "dom.js");
            const root = document.createElement("div");
            patch(root, [h("a", { href: to }, "there")]);
            return root.firstChild.getAttribute("href");
        }""",
        [modules(page), to],
    )
    assert made == (to if kept else None)


def test_commands_to_copy_quote_what_they_name(lone: ServerProcess, new_page: NewPage) -> None:
    body = {"workflow_type": "order", "workflow_id": "order-1", "task_queue": QUEUE}
    assert lone.call("POST", "/workflows", body).status_code == 201
    page = new_page(base_url=lone.url)

    def command(path: str, begins: str) -> list[str]:
        page.goto(path)
        shown = page.locator("code", has_text=begins).first
        expect(shown).to_be_visible()
        return shlex.split(shown.inner_text())

    worker = ["dw", "worker", "FILE", "--server", lone.url, "--queue", QUEUE]
    assert command(f"/waterline/queues/{quote(QUEUE, safe='')}", "dw worker") == worker
    assert command("/waterline/runs/order-1", "dw worker") == worker


def test_no_command_is_shown_before_its_queue_is_known(lone: ServerProcess, new_page: NewPage) -> None:
    body = {"workflow_type": "order", "workflow_id": "order-1", "task_queue": QUEUE}
    assert lone.call("POST", "/workflows", body).status_code == 201
    page = new_page(base_url=lone.url)
    held: list[Route] = []
    page.route(re.compile(r"/api/workflows/order-1/summary(\?|$)"), lambda route: held.append(route))
    page.goto("/waterline/runs/order-1")
    expect(page.locator(".why .help")).to_be_visible()
    expect(page.locator("code", has_text="dw worker")).to_have_count(0)
    for route in held:
        route.continue_()
    expect(page.locator("code", has_text="dw worker")).to_contain_text("--queue")
