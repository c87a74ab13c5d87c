"""Real processes for the tests of the operator's page, and what they ask of a page.

A server (`ServerProcess`) and workers (`WorkerProcess`) are what operators start: `dw server` and `dw worker`. `until` waits for
a condition, with a deadline; nothing here waits for a fixed time. `Complaints` hears what is wrong with a page, and `axe` tells what
keeps people out of it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import BrowserContext, ConsoleMessage, Dialog, Page, Request, WebError

from ..selection import first_of

DW = (sys.executable, "-P", "-m", "backstay.cli.main")
PATIENCE = 30
VERSIONS = {"X-Durable-Workflow-Control-Plane-Version": "2", "X-Durable-Workflow-Protocol-Version": "1.20"}
ADMIN, OPERATOR, VIEWER = "admin-token-of-tests", "operator-token-of-tests", "viewer-token-of-tests"
WCAG = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa")

T = TypeVar("T")


def looks(*widths: int) -> list[Any]:
    """Parameters (`scheme`, `width`): both themes at each width. `make test` looks at the first."""
    every = [(scheme, width) for scheme in ("light", "dark") for width in widths]
    return first_of(every, 1, "other widths and themes of what `make test` looks at in one")


def until(true: Callable[[], T], what: object = "it never happened") -> T:
    """What `true` returns as soon as that is a true value."""
    deadline = time.monotonic() + PATIENCE
    while not (found := true()):
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(0.01)  # no fixed wait: others need the processor to make it true
    return found


class _Process:
    """A `dw` command whose first line says that it is ready. Everything it says after that is in `log`."""

    def __init__(
        self, directory: Path, name: str, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> None:
        # What the shell of the one who runs the tests sets is no setting of a test.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("DW_")}
        self.log = directory / f"{name}.log"
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                [*DW, name, *arguments],
                cwd=directory,
                env=inherited | dict(environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def first_line(self) -> str:
        assert self.popen.stdout is not None
        said = self.popen.stdout.readline()
        assert said, f"it did not start: {self.log.read_text()[-2000:]}"
        return said

    def stop(self) -> None:
        """End it as an operator does. What still runs after five seconds is not waited for."""
        if self.popen.poll() is None:
            self.popen.terminate()
        try:
            self.popen.wait(5)
        except subprocess.TimeoutExpired:
            self.popen.kill()
        self._reap()

    def kill(self) -> None:
        """End it as a power cut does."""
        self.popen.kill()
        self._reap()

    def _reap(self) -> None:
        self.popen.wait(PATIENCE)
        if self.popen.stdout is not None:
            self.popen.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class ServerProcess(_Process):
    """`dw server` on a free port of this machine, with a database in `directory`; `again()` starts it at the same address."""

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        port: int = 0,
        environment: Mapping[str, str] | None = None,
        token: str | None = None,
    ) -> None:
        self._same = (directory, arguments, environment, token)
        super().__init__(directory, "server", "--port", str(port), *arguments, environment=environment)
        self.token = token
        self.url = self.first_line().split()[-1]

    def again(self) -> ServerProcess:
        """After `stop` or `kill`: the same server, started again."""
        directory, arguments, environment, token = self._same
        port = httpx.URL(self.url).port
        assert port is not None
        return ServerProcess(directory, *arguments, port=port, environment=environment, token=token)

    def call(
        self, method: str, path: str, body: Any = None, *, token: str | None = None, **options: Any
    ) -> httpx.Response:
        """`path` begins after `/api`. `token`: another than that of this server."""
        return call(self.url, method, path, body, token=token or self.token, **options)

    def get(self, path: str, *, token: str | None = None, **options: Any) -> Any:
        """What a GET answers, which has to be a success."""
        answer = self.call("GET", path, token=token, **options)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:500]}"
        return answer.json()


class WorkerProcess(_Process):
    """`dw worker FILE` for one or more queues of a server."""

    def __init__(
        self,
        directory: Path,
        file: Path,
        url: str,
        *queues: str,
        token: str | None = None,
        build: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        options = [option for queue in queues for option in ("--queue", queue)]
        options += [] if token is None else ["--token", token]
        options += [] if build is None else ["--build", build]
        super().__init__(
            directory, "worker", str(file), "--server", url, "--drain", "0.1", *options, environment=environment
        )

    def ready(self) -> Self:
        """Returns when it works. Apart from the start, so that several start at once."""
        self.first_line()
        return self


def call(
    url: str, method: str, path: str, body: Any = None, *, token: str | None = None, **options: Any
) -> httpx.Response:
    headers = VERSIONS | ({} if token is None else {"Authorization": f"Bearer {token}"}) | options.pop("headers", {})
    # `verify`: there is no certificate, and loading all that could sign one takes longer than the request.
    return httpx.request(
        method, f"{url}/api{path}", headers=headers, json=body, timeout=PATIENCE, verify=False, **options
    )


class Complaints:
    """What is wrong with the pages of some browser contexts, as a user or an operator would never see it.

    Errors of the console, exceptions that nobody caught, dialogs, violations of the page's security policy, and requests to another
    host. A test that provokes one says so: `complaints.allow("401")`.
    """

    def __init__(self) -> None:
        self.found: list[str] = []
        self._allowed: list[re.Pattern[str]] = []

    def allow(self, pattern: str) -> None:
        """Complaints in which this regular expression is found are none, from now on and up to now."""
        self._allowed.append(re.compile(pattern))
        self.found = [said for said in self.found if not self._allowed[-1].search(said)]

    def watch(self, context: BrowserContext) -> None:
        # Chromium tells the console of most violations; the event tells of all of them.
        context.add_init_script(
            "addEventListener('securitypolicyviolation', (event) => console.error("
            "`policy: ${event.effectiveDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`))"
        )
        context.on("console", self._console)
        context.on("weberror", self._web_error)
        context.on("dialog", self._dialog)
        context.on("request", self._request)

    def hear_all(self, context: BrowserContext) -> None:
        """Wait for what is still on its way: a page answers after it has told everything that came before."""
        for page in context.pages:
            page.evaluate("0")

    def add(self, said: str) -> None:
        if not any(pattern.search(said) for pattern in self._allowed):
            self.found.append(said)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.add(f"console: {message.text} ({message.location.get('url')}:{message.location.get('lineNumber')})")

    def _web_error(self, error: WebError) -> None:
        self.add(f"exception: {error.error.stack or error.error}")

    def _dialog(self, dialog: Dialog) -> None:
        self.add(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Request) -> None:
        url = httpx.URL(request.url) if request.url.startswith("http") else None
        if url is not None and url.host not in ("127.0.0.1", "localhost"):
            self.add(f"request to another host: {request.url}")


def axe(page: Page, *, within: str | None = None) -> list[str]:
    """What is wrong with a page for people with disabilities, by WCAG 2.1 AA, a line for each place. Empty is good.

    Axe is evaluated and not added as a script: the page's policy for scripts stays as it is, and forbids that.
    """
    page.evaluate(AXE_SCRIPT)
    options = {"runOnly": {"type": "tag", "values": list(WCAG)}, "resultTypes": ["violations"]}
    found: list[dict[str, Any]] = page.evaluate(
        "([within, options]) => axe.run(within || document, options).then((results) => results.violations)",
        [within, options],
    )
    return [
        f"{violation['id']} ({violation['impact']}): {' '.join(map(str, node['target']))}: "
        f"{' '.join(node.get('failureSummary', violation['help']).split())} [{node['html'][:200]}]"
        for violation in found
        for node in violation["nodes"]
    ]


def too_wide(page: Page) -> int:
    """By how many pixels a page is wider than its window, so that all of it has to be scrolled sideways."""
    return page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")


def modules(page: Page) -> str:
    """The address of the modules that a page has loaded, to import one of them."""
    return page.evaluate("() => document.querySelector('script[type=module]').src.replace('main.js', '')")


def settled(page: Page, path: str) -> None:
    """Go to an address and return when the page shows something and asks for nothing more; its live stream does not count."""
    asked: set[Request] = set()

    def begin(request: Request) -> None:
        if httpx.URL(request.url).path != "/api/live":
            asked.add(request)

    def end(request: Request) -> None:
        asked.discard(request)

    page.on("request", begin)
    page.on("requestfinished", end)
    page.on("requestfailed", end)
    try:
        page.goto(path)
        page.locator("main").first.wait_for()
        until(lambda: _frame(page) and not asked and _frame(page) and not asked, lambda: f"{path} still asks: {asked}")
    finally:
        page.remove_listener("request", begin)
        page.remove_listener("requestfinished", end)
        page.remove_listener("requestfailed", end)


def _frame(page: Page) -> bool:
    """Wait for two frames: what an answer changed is drawn in the first, and asks for more before the second."""
    return page.evaluate(
        "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
    )
