"""What a page names exists: imports, classes, errors."""

from __future__ import annotations

import builtins
import re
from pathlib import Path

import pytest

import backstay
from backstay import BackstayError
from backstay.kernel.machine import Machine

from .pages import DOCS, PAGES, ROOT, name_of, prose

# Names of asyncio, of the programs on the pages, of what people come from, and of frameworks.
ELSEWHERE = {"TaskGroup", "CardDeclined", "RetryPolicy", "Replayer", "AsyncResult", "SetWorkflowID", "Queue"} | {
    "AppConfig",
    "TestClient",
}
FOR_AUTHORS = [page for page in PAGES if page.parent.name in ("how-to", "tutorial") or page.name == "README.md"]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_imports_only_public_names(page: Path) -> None:
    for module, names in re.findall(r"^ *from (backstay[\w.]*) import ([\w, ]+)$", page.read_text("utf-8"), re.M):
        assert module == "backstay", f"{name_of(page)} sends authors into {module}"
        assert [name for name in names.split(", ") if not hasattr(backstay, name)] == []


@pytest.mark.parametrize("page", FOR_AUTHORS, ids=name_of)
def test_the_classes_that_a_page_names_exist(page: Path) -> None:
    named = set(re.findall(r"`([A-Z][A-Za-z]*[a-z][A-Za-z]*)(?:[(:\[]|`)", prose(page.read_text("utf-8"))))
    assert named - {*dir(backstay), *Machine().kinds, *dir(builtins), *ELSEWHERE} == set()


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
