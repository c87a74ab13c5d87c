"""What a page names exists: imports, classes, errors."""

from __future__ import annotations

import builtins
import re
from importlib import import_module
from pathlib import Path

import pytest

import backstay.testing
from backstay import BackstayError
from backstay.kernel.machine import Machine

from .pages import DOCS, PAGES, ROOT, name_of, prose

# Names of asyncio, of the programs on the pages, of what people come from, and of frameworks.
ELSEWHERE = {
    "CancelScope",
    "TaskGroup",
    "CardDeclined",
    "RetryPolicy",
    "Replayer",
    "AsyncResult",
    "SetWorkflowID",
    "Queue",
} | {
    "TestClient",
    "TransactionTestCase",
    "TestCase",
    "QueueHandler",
}
PUBLIC = ("backstay", "backstay.contrib.django", "backstay.logging", "backstay.testing")
FOR_AUTHORS = [page for page in PAGES if page.parent.name in ("how-to", "tutorial") or page.name == "README.md"]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_imports_only_public_names(page: Path) -> None:
    for module, names in re.findall(r"^ *from (backstay[\w.]*) import ([\w, ]+)$", page.read_text("utf-8"), re.M):
        assert module in PUBLIC, f"{name_of(page)} sends authors into {module}"
        assert set(names.split(", ")) <= set(dir(import_module(module)))


@pytest.mark.parametrize("page", FOR_AUTHORS, ids=name_of)
def test_the_classes_that_a_page_names_exist(page: Path) -> None:
    named = set(re.findall(r"`([A-Z][A-Za-z]*[a-z][A-Za-z]*)(?:[(:\[]|`)", prose(page.read_text("utf-8"))))
    known = {*dir(backstay), *dir(backstay.testing), *Machine().kinds, *dir(builtins), *ELSEWHERE}
    assert named - known == set()


FORMER = r"\b(?:existing|heartbeat|crashes|run_tasks)=|\battempt\(\)|\baio\.|import aio\b|backstay\.attempt\b"
FOR_READERS = [
    *PAGES,
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "examples").rglob("*.py")),
    *sorted((ROOT / "bench").glob("*.py")),
]


@pytest.mark.parametrize("page", FOR_READERS, ids=name_of)
def test_no_page_and_no_example_uses_a_name_that_was_given_up(page: Path) -> None:
    assert re.findall(FORMER, page.read_text("utf-8")) == []


PACKAGES = "kernel|codec|protocol|store|engine|sdk|server|cli"
ABOUT_THE_CODE = sorted((DOCS / "explanation").glob("*.md"))


@pytest.mark.parametrize("page", ABOUT_THE_CODE, ids=name_of)
def test_the_files_and_classes_that_an_explanation_names_exist(page: Path) -> None:
    text = prose(page.read_text("utf-8"))
    sources = ROOT / "src" / "backstay"
    for path in re.findall(rf"`((?:{PACKAGES}|tests|bench|examples|tools)/[\w/.-]+)`", text):
        assert (sources / path).exists() or (ROOT / path).exists(), path
    classes = {
        name for file in sources.rglob("*.py") for name in re.findall(r"^class (\w+)", file.read_text("utf-8"), re.M)
    }
    named = set(re.findall(r"`([A-Z][A-Za-z]*[a-z][A-Za-z]*)(?:[.(:\[]\w*|`)", text))
    assert named - classes - {*dir(backstay), *dir(builtins), "CancelledError"} == set()


def test_the_table_of_problems_names_our_errors() -> None:
    page = (DOCS / "how-to" / "operate.md").read_text("utf-8")
    table = page.partition("## When something goes wrong")[2].partition("\n## ")[0]
    named = set(re.findall(r"^\| `([A-Z]\w+)", table, re.M))
    assert len(named) > 5
    for name in named:
        assert issubclass(getattr(backstay, name), BackstayError), name
