"""The files of Waterline, as a browser gets them: at every address under /waterline, with a policy that lets them do little."""

from __future__ import annotations

import gzip
import re
from importlib.resources import files
from pathlib import Path

import pytest

from backstay.waterline import POLICY, load_assets

from .kit import serving

ALL = 110_000
FIRST = 31_800
"""Bytes over the wire of all files together, and of those that the first screen needs."""
BLOCK = re.compile(r"^[ \t]*/\*.*?\*/$", re.MULTILINE | re.DOTALL)
TYPE = re.compile(r"/\*\* @.*?\*/ ?")
TAIL = re.compile(r"(?<=[;,{}()\]>]) (?://[^\"'`]*|/\*.*?\*/)$")


async def test_every_address_is_the_page_and_needs_no_credential() -> None:
    async with serving() as api:
        for path in (
            "/waterline",
            "/waterline/",
            "/waterline/runs",
            "/waterline/runs/a%2Fb/c",
            "/waterline/runs/a/b/c/d/e",
        ):
            found = await api.http.get(path)
            assert found.status_code == 200, path
            assert found.headers["content-type"] == "text/html; charset=utf-8"
            assert found.headers["content-security-policy"] == POLICY
            assert found.headers["cache-control"] == "no-cache"
            assert found.headers["x-frame-options"] == "DENY"
        home = await api.http.get("/", follow_redirects=False)
        assert (home.status_code, home.headers["location"]) == (302, "/waterline/")


async def test_files_are_kept_for_good_and_only_under_their_own_version() -> None:
    assets = load_assets()
    async with serving() as api:
        page = (await api.http.get("/waterline/")).text
        named = set(re.findall(r'(?:src|href)="([^"]+)"', page))
        assert all(one.startswith(f"/waterline/a/{assets.version}/") for one in named), "nothing comes from elsewhere"
        for path in named:
            found = await api.http.get(path)
            assert found.status_code == 200, path
            assert found.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert found.headers["content-encoding"] == "gzip"
            assert found.headers["content-security-policy"] == POLICY
        plain = await api.http.get(f"/waterline/a/{assets.version}/js/main.js", headers={"accept-encoding": "identity"})
        assert plain.content == assets.named["js/main.js"].content
        assert "content-encoding" not in plain.headers
        assert (await api.http.get(f"/waterline/a/{assets.version}/js/none.js")).status_code == 404
        gone = await api.http.get("/waterline/a/0000/js/main.js")
        assert (gone.status_code, gone.json()["reason"]) == (404, "file_not_found")


async def test_the_page_has_no_other_method_and_the_api_is_not_behind_it() -> None:
    async with serving() as api:
        assert (await api.http.post("/waterline/runs")).status_code == 405
        unknown = await api.http.get("/api/waterline")
        assert (unknown.status_code, unknown.json()["reason"]) == (404, "route_not_found")


async def test_only_the_head_of_a_page_or_file_can_be_asked_for() -> None:
    version = load_assets().version
    async with serving() as api:
        for path in (
            "/",
            "/waterline",
            "/waterline/runs/a",
            f"/waterline/a/{version}/js/main.js",
            "/waterline/a/0/x.js",
        ):
            whole = await api.http.get(path, follow_redirects=False)
            head = await api.http.head(path, follow_redirects=False)
            assert (head.status_code, head.content) == (whole.status_code, b""), path
            assert head.headers == whole.headers, path


def test_it_is_small() -> None:
    assets = load_assets()
    every = {"index.html": assets.shell, **assets.named}
    assert sum(len(asset.compressed) for asset in every.values()) < ALL
    first = [name for name in every if name.count("/") < 2 or name == "js/screens/overview.js"]
    assert sum(len(every[name].compressed) for name in first) < FIRST
    assert all(gzip.decompress(asset.compressed) == asset.content for asset in every.values())


def test_files_are_sent_without_comments_and_otherwise_as_they_are() -> None:
    source = files("backstay.waterline") / "static" / "js" / "words.js"
    written, sent = source.read_text(), load_assets().named["js/words.js"].content.decode()
    lines = [line.strip() for line in BLOCK.sub("", written).splitlines()]
    code = [TYPE.sub("", TAIL.sub("", line)) for line in lines if line and not line.startswith("//")]
    assert [line for line in sent.splitlines() if line] == code
    for module in sorted(Path(str(files("backstay.waterline"))).rglob("*.js")):
        for number, line in enumerate(module.read_text().splitlines(), 1):
            for found in (*TYPE.finditer(line), *TAIL.finditer(line)):
                before = TYPE.sub("", line[: found.start()])
                inside = before.count('"') % 2 or before.count("`") % 2
                assert not inside, f"{module.name}:{number}: a type or a comment in a text"
            assert line.count("`") % 2 == 0, (
                f"{module.name}:{number}: a text of several lines would lose its indentation"
            )


@pytest.mark.parametrize("name", sorted(load_assets().named))
def test_no_file_makes_markup_from_strings_or_asks_another_host(name: str) -> None:
    text = load_assets().named[name].content.decode()
    for forbidden in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "https://",
    ):
        assert forbidden not in text, f"{name} has {forbidden}"
    outside = re.findall(r"http://(?!www\.w3\.org/)[^\s\"'`]+", text)
    assert not outside, outside
