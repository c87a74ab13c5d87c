"""Links lead somewhere, the index reaches every page, and sources wrap at 100 columns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .pages import DOCS, PAGES, ROOT, name_of, prose

COLUMNS = 100
_LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")


def links(page: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*\]\([^`\n]*`", "", prose(page.read_text(encoding="utf-8")))  # `Signal[str]("paid")` is none
    return [target for target in _LINK.findall(text) if "://" not in target]


def anchors(page: Path) -> set[str]:
    """As GitHub and MkDocs make them from headings."""
    titles = re.findall(r"^#+ (.+)$", prose(page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=name_of)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in links(page):
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), f"{name_of(page)}: {target}"
        if page.is_relative_to(DOCS):
            assert there.is_relative_to(DOCS), f"{name_of(page)}: {target} is not on the site"
        if anchor:
            assert anchor in anchors(there), f"{name_of(page)}: {target}"


def test_the_index_links_every_page() -> None:
    index = DOCS / "index.md"
    linked = {(index.parent / target.partition("#")[0]).resolve() for target in links(index)}
    assert set(DOCS.rglob("*.md")) - linked - {index} == set()


def test_the_navigation_of_the_site_has_every_page() -> None:
    named = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert named == {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_wraps_at_100_columns(page: Path) -> None:
    text = prose(page.read_text(encoding="utf-8"))
    too_long = [line for line in text.splitlines() if len(line) > COLUMNS and not line.startswith("|")]
    assert too_long == []
