"""How quick Waterline is in Chromium, on loopback. Every figure is the page's own clock, until what it shows has been painted.

    python bench/page.py list --keep FILE     a list of a million runs: by a click on an open page, and as a new page (FILE is made once)
    python bench/page.py news                 from a command until the page shows what it did: on the page of a run, and in the list
    python bench/page.py long                 a run of 50,000 events: its sentence, its timeline, frames while scrolling, elements

It starts a server of its own and a browser, and ends both.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import lists
import msgspec
from measuring import small
from playwright.sync_api import Page, sync_playwright

from backstay import Backstay, activity, gather, query, signal, wait, workflow

VERSION = {"X-Durable-Workflow-Control-Plane-Version": "2", "Content-Type": "application/json"}

# Painted: two frames after it was there.
SEEN = """
  window.seen = (what) => new Promise((done) => {
    const look = () => (what() ? requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))) : requestAnimationFrame(look));
    look();
  });
"""


@activity
def pick(number: int) -> int:
    return number


@workflow
class Long:
    def __init__(self) -> None:
        self.over = self.waiting = False

    @query
    def waits(self) -> bool:
        return self.waiting

    @signal
    def end(self) -> None:
        self.over = True

    def handle(self, rounds: int) -> None:
        for _ in range(rounds):
            gather(pick.step(number) for number in range(250))
        self.waiting = True
        wait(lambda: self.over)


@workflow
class Waiting:
    def __init__(self) -> None:
        self.over = False

    @signal
    def end(self) -> None:
        self.over = True

    def handle(self) -> None:
        wait(lambda: self.over)


def serve(store: str) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "backstay.cli.main", "server", "--port", "0", "--auth", "none", "--store", store]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().split()[-1]


def told(what: str, found: list[float], mark: float) -> None:
    ordered = sorted(found)
    high = ordered[int(len(ordered) * 0.95)]
    print(
        f"{what}: median {statistics.median(found):.0f} ms, 95 % {high:.0f} ms, worst {ordered[-1]:.0f} ms (mark {mark:.0f} ms)"
    )


def call(url: str, method: str, path: str, body: Any = None) -> Any:
    http = HTTPConnection(url.removeprefix("http://"))
    http.request(method, f"/api{path}", None if body is None else msgspec.json.encode(body), VERSION)
    answer = http.getresponse()
    said = answer.read()
    assert answer.status < 300, (path, answer.status, said[:300])
    return msgspec.json.decode(said)


def measure_list(page: Page, url: str, times: int) -> None:
    rows = "document.querySelectorAll('#runs tbody tr').length >= 50"
    alone: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        call(url, "GET", "/flows/all?page_size=50&definition=0")
        alone.append((time.perf_counter() - began) * 1000)
    told("the list alone, without a browser", alone, 300)
    page.goto(f"{url}/waterline/queues")
    page.locator("h1").first.wait_for()
    clicked: list[float] = []
    for _ in range(times):
        clicked.append(
            page.evaluate(
                f"""async () => {{ const began = performance.now();
                document.querySelector("nav a[href^='/waterline/runs']").click();
                return await seen(() => {rows}) - began; }}"""
            )
        )
        page.evaluate("document.querySelector(\"nav a[href^='/waterline/queues']\").click()")
        page.locator("#runs").wait_for(state="detached")
    told("a click on Runs", clicked, 300)
    loaded: list[float] = []
    for _ in range(times):
        page.goto(f"{url}/waterline/runs", wait_until="commit")
        loaded.append(page.evaluate(f"() => seen(() => {rows})"))
    told("a new page", loaded, 300)


def measure_news(page: Page, url: str, times: int) -> None:
    """From the moment a command is sent. The run then needs its worker, so a little of it is no affair of the page."""
    shown: list[float] = []
    state = "document.querySelector('main .badge')?.textContent.includes('completed')"
    for number in range(times):
        page.goto(f"{url}/waterline/runs/wait-{number}")
        page.get_by_text("waiting", exact=False).first.wait_for()
        page.locator(".tabs").wait_for()
        page.wait_for_timeout(300)  # its stream is open, and what it has loaded is drawn
        page.evaluate(f"() => {{ window.end = seen(() => {state}).then((at) => performance.timeOrigin + at); }}")
        began = time.time() * 1000
        call(url, "POST", f"/workflows/wait-{number}/signal/end", {})
        shown.append(page.evaluate("() => window.end") - began)
    told("a run that ends, on its page", shown, 300)
    listed: list[float] = []
    page.goto(f"{url}/waterline/runs")
    page.locator("#runs tbody tr").nth(min(40, 2 * times - 1)).wait_for()
    for number in range(times, 2 * times):
        page.wait_for_timeout(1000)  # a list that is quiet
        row = (
            f"[...document.querySelectorAll('#runs tbody tr')].find((row) => row.textContent.includes('wait-{number}'))"
        )
        page.evaluate(
            f"() => {{ window.end = seen(() => {row}?.textContent.includes('completed')).then((at) => performance.timeOrigin + at); }}"
        )
        began = time.time() * 1000
        call(url, "POST", f"/workflows/wait-{number}/signal/end", {})
        listed.append(page.evaluate("() => window.end") - began)
    told("a run that ends, in the list", listed, 300)


def measure_long(page: Page, url: str, times: int) -> None:
    events = call(url, "GET", "/workflows/long-1/summary")["events"]
    print(f"{events} events")
    for path, mark in (("why", 200), ("summary", 200), ("outline", 1000), (f"at/{events // 2}", 1000)):
        took: list[float] = []
        for _ in range(times):
            began = time.perf_counter()
            call(url, "GET", f"/workflows/long-1/{path}")
            took.append((time.perf_counter() - began) * 1000)
        told(f"{path} alone, without a browser", took, mark)
    page.goto(f"{url}/waterline/queues")
    page.locator("h1").first.wait_for()
    sentence: list[float] = []
    timeline: list[float] = []
    for _ in range(times):
        first, second = page.evaluate(
            """async () => { const began = performance.now();
            history.pushState(null, "", "/waterline/runs/long-1"); dispatchEvent(new PopStateEvent("popstate"));
            const one = seen(() => (document.querySelector("main .sentence")?.textContent ?? "").length > 20);
            const two = seen(() => document.querySelectorAll("[role=listbox] [role=option]").length > 10);
            return [await one - began, await two - began]; }"""
        )
        sentence.append(first)
        timeline.append(second)
        page.evaluate('history.pushState(null, "", "/waterline/queues"); dispatchEvent(new PopStateEvent("popstate"))')
        page.locator("[role=listbox]").wait_for(state="detached")
    told("sentence", sentence, 200)
    told("timeline", timeline, 1000)
    page.evaluate('history.pushState(null, "", "/waterline/runs/long-1"); dispatchEvent(new PopStateEvent("popstate"))')
    page.locator("[role=listbox] [role=option]").nth(10).wait_for()
    frames, most = page.evaluate(
        """async () => { const box = document.querySelector("[role=listbox]"); const frames = []; let most = 0; let before = performance.now();
        const scroller = [box, box.parentElement, document.scrollingElement].find((one) => one.scrollHeight > one.clientHeight + 100);
        for (let n = 0; n < 300; n++) {
          scroller.scrollTop = (n * 977) % (scroller.scrollHeight - scroller.clientHeight);
          const at = await new Promise(requestAnimationFrame);
          frames.push(at - before); before = at;
          most = Math.max(most, document.querySelectorAll("*").length);
        }
        return [frames.slice(1), most]; }"""
    )
    told("frames while scrolling", frames, 33)
    print(
        f"frames over 33 ms: {sum(one > 33.4 for one in frames)} of {len(frames)}; at most {most} elements (mark 1500)"
    )


def make_long(file: str, rounds: int) -> None:
    with Backstay(file, [Long, pick]) as app:
        app.start(Long, "long-1", rounds)
        while not app.handle(Long, "long-1").query("waits"):
            time.sleep(0.5)


def browser_program() -> Path:
    sys.path.append(str(Path(__file__).parents[1]))
    from tools import chromium

    return chromium.find()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("what", choices=("list", "news", "long"))
    options.add_argument("--keep", type=Path)
    options.add_argument("--runs", type=int, default=1_000_000)
    small(options)
    given = options.parse_args()
    given.times, given.rounds = 50 if given.what == "news" else 10, 66
    if given.small:
        given.runs, given.times, given.rounds = 60, 1, 1
    with tempfile.TemporaryDirectory() as place:
        file = given.keep or Path(place) / "page.db"
        if not file.exists():
            if given.what == "list":
                lists.make_file(str(file), given.runs)
            elif given.what == "long":
                make_long(str(file), given.rounds)
        process, url = serve(f"sqlite:{file}")
        worker = None
        try:
            if given.what == "news":
                worker = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "backstay.cli.main",
                        "worker",
                        __file__,
                        "--server",
                        url,
                        "--queue",
                        "default",
                    ],
                    stdout=subprocess.PIPE,
                    text=True,
                )
                assert worker.stdout is not None
                worker.stdout.readline()
                for number in range(2 * given.times):
                    body = {"workflow_id": f"wait-{number}", "workflow_type": "Waiting", "task_queue": "default"}
                    call(url, "POST", "/workflows", body)
                time.sleep(2)
            where = browser_program()
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=where, args=["--no-sandbox"])
                page = browser.new_page(viewport={"width": 1280, "height": 900})
                page.add_init_script(SEEN)
                {"list": measure_list, "news": measure_news, "long": measure_long}[given.what](page, url, given.times)
                browser.close()
        finally:
            for one in (worker, process):
                if one is not None:
                    one.terminate()
                    one.wait(30)


if __name__ == "__main__":
    main()
