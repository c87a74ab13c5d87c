"""Pictures of every screen, to look at: `python -m tests.waterline.shots OUT_DIR [--only overview,run] [--width 1280]`.

A server with the world (`world.py`) is started, and each screen is taken in light and dark, and in three widths. The name of a
picture says what it is: `run-timeline-batch-1-dark-390.png`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from playwright.sync_api import Browser, Page, sync_playwright
from tools import chromium

from .kit import Complaints, settled
from .world import HOSTILE_ID, standing

TABS = {
    "timeline": "batch-1",
    "history": "order-1",
    "activities": "batch-1",
    "waits": "approval-1",
    "messages": "approval-1",
    "lineage": "family-1",
    "failures": "order-1",
    "export": "welcome-1",
}
"""The tabs of a run, and the run that has most to show there."""

RUNS = ("approval-1", "delivery-1", "import-1", "shipping-1", "stranded-1", "paused-1", "reminder-1", "large-1")
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
WIDTHS = {1280: 800, 768: 1024, 390: 844}


def screens() -> dict[str, str]:
    """Addresses by the name of their picture; the first word of a name is the screen."""
    found = {"overview": "/waterline/", "runs": "/waterline/runs"}
    found |= {f"run-{run}": f"/waterline/runs/{run}" for run in RUNS}
    found |= {f"run-{tab}-{run}": f"/waterline/runs/{run}?tab={tab}" for tab, run in TABS.items()}
    found["run-hostile"] = f"/waterline/runs/{quote(HOSTILE_ID, safe='')}"
    return found | {name: f"/waterline/{name}" for name in ("queues", "schedules", "system")}


def take(browser: Browser, url: str, out: Path, only: set[str], widths: list[int]) -> list[str]:
    """Take the pictures. Returns what the pages complained about."""
    complaints = Complaints()
    for scheme in SCHEMES:
        for width in widths:
            context = browser.new_context(
                base_url=url, color_scheme=scheme, viewport={"width": width, "height": WIDTHS.get(width, 800)}
            )
            complaints.watch(context)
            page = context.new_page()
            for name, path in screens().items():
                if not only or name in only or name.partition("-")[0] in only:
                    _shoot(page, path, out / f"{name}-{scheme}-{width}.png", complaints)
            context.close()
    return complaints.found


def _shoot(page: Page, path: str, file: Path, complaints: Complaints) -> None:
    known = len(complaints.found)
    settled(page, path)
    page.screenshot(path=file, full_page=True)
    complaints.found[known:] = [f"{file.name}: {said}" for said in complaints.found[known:]]
    print(file, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.waterline.shots", description=__doc__)
    parser.add_argument("out", type=Path, help="the directory for the pictures")
    parser.add_argument("--only", default="", help="screens or pictures, with commas: overview,run or run-hostile")
    parser.add_argument("--width", type=int, action="append", help=f"default: {', '.join(map(str, WIDTHS))}")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    where = chromium.find()
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with (
        tempfile.TemporaryDirectory() as directory,
        standing(Path(directory)) as world,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=where, args=arguments)
        only = {name for name in asked.only.split(",") if name}
        complained = take(browser, world.url, asked.out, only, asked.width or list(WIDTHS))
        browser.close()
    for said in complained:
        print(f"complaint: {said}")


if __name__ == "__main__":
    main()
