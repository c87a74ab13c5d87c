"""A Chromium for the tests of the operator's page: the one of this machine, else one is installed (`python -m tools.chromium`).

The first that answers `--version` counts: the one that BACKSTAY_CHROMIUM names, one on the PATH, one that Playwright has
downloaded. If there is none, it comes from Debian's or Ubuntu's packages (as root), else from Playwright's downloads. Without
any of them the tests cannot run, and the command says what to do and exits with 1: they are never skipped in silence.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMED = "BACKSTAY_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ADVICE = (
    "the tests of the operator's page need Chromium, and there is none: install it (on Debian: apt-get install chromium),"
    f" or name one with {NAMED}=/path/to/chromium"
)


class NoChromium(Exception):
    """There is no Chromium that runs; the message says what to do."""


def find() -> Path:
    """The Chromium of this machine. Installs nothing."""
    named = os.environ.get(NAMED)
    if named:
        wrong = _problem(named)
        if wrong:
            raise NoChromium(f"{NAMED} names {named}, which does not run: {wrong}")
        return Path(named)
    found = [shutil.which(name) for name in NAMES]
    for place in [*filter(None, found), *_downloaded()]:
        if _problem(place) is None:
            return Path(place)
    raise NoChromium(ADVICE)


def install() -> Path:
    """The Chromium of this machine, installed if there is none."""
    try:
        return find()
    except NoChromium:
        if os.environ.get(NAMED):
            raise  # somebody wants that one, no other
    tried: list[str] = []
    for way in (_from_packages, _from_playwright):
        wrong = way()
        if wrong is None:
            try:
                return find()
            except NoChromium:
                wrong = "was installed and does not run"
        tried.append(f"{way.__name__.removeprefix('_').replace('_', ' ')}: {wrong}")
    raise NoChromium("; ".join([ADVICE, *tried]))


def _from_packages() -> str | None:
    """None, or why that did not work."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return "needs root on Debian or Ubuntu"
    # A machine without any font has pages without text, and what is recommended beside a font is a desktop.
    command = ["apt-get", "install", "--yes", "--no-install-recommends", "chromium", "fonts-dejavu-core"]
    print("installing Chromium with apt-get", flush=True)
    if _run(command) is None:
        return None
    # A fresh machine has no lists of packages, or those of yesterday.
    return _run(["apt-get", "update"]) or _run(command)


def _from_playwright() -> str | None:
    print("installing Chromium with Playwright", flush=True)
    return _run([sys.executable, "-m", "playwright", "install", "chromium"])


def _run(command: list[str]) -> str | None:
    """None, or the end of what a command said that failed."""
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command, env=quiet, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode == 0:
        return None
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    return f"{' '.join(command)} failed: {' '.join(lines[-3:])}"


def _downloaded() -> list[str]:
    """Where Playwright keeps the one that it downloads, whether it is there or not."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        return [playwright.chromium.executable_path]


def _problem(place: str) -> str | None:
    """Why it does not run. On Ubuntu, `chromium` may be a script that only says where to get one."""
    try:
        done = subprocess.run([place, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as wrong:
        return str(wrong)
    return None if done.returncode == 0 else (done.stderr.strip() or f"exit code {done.returncode}")


if __name__ == "__main__":
    try:
        print(f"Chromium: {install()}")
    except NoChromium as missing:
        sys.exit(str(missing))
