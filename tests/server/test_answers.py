"""What every answer has: headers of security, the time it was made, an ETag, gzip for those who ask, and safe numbers."""

from __future__ import annotations

import gzip
import re
import threading
from typing import Any

import httpx
import msgspec
import pytest

from backstay.server.http import encoding
from backstay.server.http.encoding import SAFE, accepts_gzip, with_safe_numbers
from backstay.server.routes import ROUTES

from .kit import Api, blob, serving

SECURE = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}


async def raw(api: Api, path: str, **headers: str) -> tuple[int, httpx.Headers, bytes]:
    """An answer as it came over the wire."""
    sent = {"X-Durable-Workflow-Control-Plane-Version": "2", "Authorization": "Bearer secret", **headers}
    async with api.http.stream("GET", f"/api{path}", headers=sent) as answer:
        return answer.status_code, answer.headers, b"".join([part async for part in answer.aiter_raw()])


async def test_every_answer_has_the_headers_of_security() -> None:
    async with serving() as api:
        for route in ROUTES:
            if route.plane == "own":
                continue
            path = re.sub(r"\{\w+\}", "zz", route.path)
            answers = [await api.http.request(route.method, path)]
            if route.method == "GET" and route.path != "/api/live":
                answers.append(await api.control("GET", path.removeprefix("/api")))
            for answer in answers:
                assert SECURE.items() <= dict(answer.headers).items(), route.path
                assert answer.headers["cache-control"] == (
                    "private, no-cache" if "etag" in answer.headers else "no-store"
                ), route.path
                if route.plane != "worker":
                    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"], route.path
        assert SECURE.items() <= dict((await api.http.get("/nowhere")).headers).items()


async def test_every_answer_of_the_control_plane_says_when_it_was_made() -> None:
    async with serving(still=False, query_timeout_seconds=0.1) as api:
        await api.start()
        for route in ROUTES:
            if route.plane != "control" or route.answers != "application/json":
                continue
            path = re.sub(r"\{\w+\}", "o-1", route.path).removeprefix("/api")
            answer = await api.control(route.method, path, None if route.method == "GET" else {})
            # An export is sent as its checksum was computed, and says when in its own words.
            name = "exported_at" if route.path.endswith("/export") and answer.status_code == 200 else "generated_at"
            stamped = answer.json().get(name)
            assert stamped is not None, (route.method, route.path, answer.text)
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", stamped)


async def test_an_answer_that_the_caller_knows_is_not_sent_again() -> None:
    async with serving() as api:
        await api.start()
        first = await api.control("GET", "/workflows/o-1")
        tag = first.headers["etag"]
        await api.world.advance(5)
        for known in (tag, f'"other", {tag}', tag.removeprefix("W/"), "*"):
            again = await api.control("GET", "/workflows/o-1", headers={"If-None-Match": known})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        later = await api.control("GET", "/workflows/o-1", headers={"If-None-Match": '"other"'})
        assert later.json() == first.json() | {"generated_at": later.json()["generated_at"]}
        assert later.json()["generated_at"] > first.json()["generated_at"]
        await api.control("POST", "/workflows/o-1/pause", {})
        changed = await api.control("GET", "/workflows/o-1", headers={"If-None-Match": tag})
        assert (changed.status_code, changed.headers["etag"] != tag) == (200, True)
        missing = await api.control("GET", "/workflows/none", headers={"If-None-Match": "*"})
        assert (missing.status_code, "etag" in missing.headers) == (404, False)


async def test_callers_with_other_rights_have_other_tags() -> None:
    async with serving() as api:
        await api.start(input=["secret thing"])
        blind = (await api.control("POST", "/tokens", {"role": "viewer", "payloads": False})).json()["token"]
        tag = (await api.control("GET", "/workflows/o-1")).headers["etag"]
        other = await api.control("GET", "/workflows/o-1", token=blind, headers={"If-None-Match": tag})
        assert (other.status_code, "secret thing" in other.text) == (200, False)


async def test_long_answers_are_compressed_for_those_who_ask() -> None:
    async with serving() as api:
        await api.start(input=["x" * 4000])
        status, headers, plain = await raw(api, "/workflows/o-1", **{"Accept-Encoding": "identity"})
        assert (status, "content-encoding" in headers) == (200, False)
        status, headers, packed = await raw(api, "/workflows/o-1", **{"Accept-Encoding": "br, gzip;q=0.5"})
        assert (headers["content-encoding"], headers["content-length"]) == ("gzip", str(len(packed)))
        assert "accept-encoding" in headers["vary"]
        assert gzip.decompress(packed) == plain
        assert len(packed) < len(plain) / 2
        _, headers, _ = await raw(api, "/session", **{"Accept-Encoding": "gzip"})
        assert "content-encoding" not in headers, "it is short"
        _, headers, _ = await raw(api, "/workflows/o-1", **{"Accept-Encoding": "gzip;q=0"})
        assert "content-encoding" not in headers
        tokens = await api.control("POST", "/tokens", {"role": "viewer", "note": "n" * 1000})
        assert "content-encoding" not in tokens.headers, "answers with secrets are not"


async def test_a_large_answer_is_compressed_beside_the_servers_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    compress = encoding.compress

    def noted(content: bytes) -> bytes:
        threads.append(threading.current_thread().name)
        return compress(content)

    monkeypatch.setattr("backstay.server.http.protocol.compress", noted)
    async with serving() as api:
        await api.start(input=["x" * 300_000])
        await api.start("short", input=["x" * 3000])
        large, short = await api.describe(), await api.describe("short")
        assert (large["input"], short["input"]) == (["x" * 300_000], ["x" * 3000])
        assert threads[0] != threading.current_thread().name == threads[1]


async def test_a_streamed_answer_is_compressed_as_it_is_made() -> None:
    async with serving() as api:
        run = (await api.start(input=["y" * 900_000, "z" * 900_000]))["run_id"]
        path = f"/workflows/o-1/runs/{run}/history/export"
        _, headers, plain = await raw(api, path, **{"Accept-Encoding": "identity"})
        assert headers["transfer-encoding"] == "chunked"
        _, headers, packed = await raw(api, path, **{"Accept-Encoding": "gzip"})
        assert headers["content-encoding"] == "gzip"
        once, again = msgspec.json.decode(gzip.decompress(packed)), msgspec.json.decode(plain)
        assert once["history_events"] == again["history_events"]
        assert len(packed) < len(plain) / 10


async def test_numbers_that_javascript_would_change_are_sent_as_texts() -> None:
    async with serving() as api:
        large = [2**53, 2**53 + 1, -(2**62), 17, "9007199254740993", {"deep": [2**60]}]
        run = (await api.start(input=blob(large)))["run_id"]
        for path in ("/workflows/o-1", f"/workflows/o-1/runs/{run}", "/workflows/o-1/detail"):
            found = (await api.control("GET", path)).json()
            assert found["input"] == [
                2**53,
                str(2**53 + 1),
                str(-(2**62)),
                17,
                "9007199254740993",
                {"deep": [str(2**60)]},
            ]
            assert not _large(found), path


def _large(value: Any) -> list[int]:
    if isinstance(value, dict):
        return [number for part in value.values() for number in _large(part)]
    if isinstance(value, list):
        return [number for part in value for number in _large(part)]
    return [value] if type(value) is int and abs(value) > SAFE else []


def test_safe_numbers_keep_everything_else() -> None:
    same = {"a": [1.5, True, None, "x", {"b": -5}], "big": 1e300}
    assert with_safe_numbers(same) == same
    assert with_safe_numbers({"raw": msgspec.Raw(b"[9007199254740993]")}) == {"raw": ["9007199254740993"]}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("", False), ("gzip", True), ("GZIP", True), ("*", True), ("br;q=1, gzip;q=0", False), ("deflate", False)],
)
def test_who_asks_for_gzip(given: str, wanted: bool) -> None:
    assert accepts_gzip({"accept-encoding": given}) is wanted


async def test_the_answers_of_our_own_protocol_stay_short() -> None:
    async with serving() as api:
        headers = {"X-Backstay-Protocol": "1", "Authorization": "Bearer secret", "Accept-Encoding": "gzip"}
        answer = await api.http.post("/api/call/list-workflows", json={}, headers=headers)
        assert dict(answer.headers) == {"content-type": "application/json", "content-length": "2"}
