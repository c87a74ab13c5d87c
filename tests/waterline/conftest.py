"""Fixtures of the tests in a browser: a world of runs, servers of one's own, and pages that are watched.

    world      the server with a run in every state (`world.py`); shared by all tests, so nobody changes what it lists
    server     the same; for tests that only need a server with something in it
    lone       an empty server of the test's own, to stop and start as it likes
    guarded    a server that asks for a token (`kit.ADMIN`, `kit.OPERATOR`, `kit.VIEWER`), with one run, `kept-1`
    page       a page in a fresh browser context; relative addresses are those of `world`
    new_page   makes more of them, with options of a context: `new_page(base_url=lone.url, color_scheme="dark")`
    complaints what is wrong with these pages: the test fails at its end if there is anything

Playwright's synchronous API leaves its event loop marked as the running one of this thread, and `asyncio.run` of another test
would refuse to run. So the mark is taken away between the tests, and the browser ends with this directory.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from tools import chromium

from . import world as worlds
from .kit import ADMIN, OPERATOR, VIEWER, Complaints, ServerProcess
from .world import World

TIMEOUT_MS = 30_000

NewPage = Callable[..., Page]


@pytest.fixture(scope="session")
def world() -> World:
    return worlds.shared()


@pytest.fixture(scope="session")
def server(world: World) -> World:
    return world


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path, "--auth", "none") as process:
        yield process


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    tokens = {"DW_ADMIN_TOKEN": ADMIN, "DW_OPERATOR_TOKEN": OPERATOR, "DW_VIEWER_TOKEN": VIEWER}
    with ServerProcess(tmp_path_factory.mktemp("guarded"), environment=tokens, token=ADMIN) as process:
        kept = {"workflow_type": "stranded", "workflow_id": "kept-1", "task_queue": "nowhere"}
        answer = process.call("POST", "/workflows", kept)
        assert answer.status_code == 201, answer.text
        yield process


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    where = chromium.find()
    with sync_playwright() as playwright:
        loop = asyncio.get_running_loop()
        # The sandbox of Chromium does not work for root, which is who runs the tests in a container.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        launched = playwright.chromium.launch(executable_path=where, args=arguments)
        expect.set_options(timeout=TIMEOUT_MS)
        _running(None)
        yield launched
        _running(loop)
        launched.close()


@pytest.fixture
def complaints() -> Complaints:
    return Complaints()


@pytest.fixture
def new_page(request: pytest.FixtureRequest, browser: Browser, complaints: Complaints) -> Iterator[NewPage]:
    contexts: list[BrowserContext] = []

    def made(**options: Any) -> Page:
        if "base_url" not in options:
            options["base_url"] = request.getfixturevalue("world").url
        context = browser.new_context(**options)
        contexts.append(context)
        context.set_default_timeout(TIMEOUT_MS)
        complaints.watch(context)
        return context.new_page()

    _running(browser._impl_obj._loop)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield made
        for context in contexts:
            complaints.hear_all(context)
            for one in context.pages:
                one.unroute_all(behavior="ignoreErrors")  # answers that a test has changed may still be under way
            context.close()
    finally:
        _running(None)
    assert not complaints.found, "the page complained:\n" + "\n".join(complaints.found)


@pytest.fixture
def page(new_page: NewPage) -> Page:
    return new_page()


def _running(loop: asyncio.AbstractEventLoop | None) -> None:
    asyncio._set_running_loop(loop)
