"""Browser sessions: a token becomes a cookie, which counts only in requests of this server's own pages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import httpx
import pytest

from backstay.kernel.values import SECOND
from backstay.server.access.browser import ADDRESSES, BrowserSessions, WrongTokens
from backstay.server.access.signatures import signed
from backstay.server.http.errors import HttpError

from .kit import TOKEN, Api, serving

VERSION = {"X-Durable-Workflow-Control-Plane-Version": "2"}
PAGE = {"Sec-Fetch-Site": "same-origin"}


async def sign_in(api: Api, token: str = TOKEN, **headers: str) -> httpx.Response:
    return await api.http.post("/api/session", json={"token": token}, headers=VERSION | PAGE | headers)


def cookie(answer: httpx.Response) -> Any:
    assert answer.status_code == 201, answer.text
    (found,) = SimpleCookie(answer.headers["set-cookie"]).values()
    return found


async def ask(api: Api, secret: str | None, method: str = "GET", path: str = "/api/workflows", **options: Any) -> Any:
    """A request as a page of this server makes it."""
    api.http.cookies.clear()
    headers = VERSION | PAGE | ({} if secret is None else {"Cookie": f"other=1; dw={secret}"})
    return await api.http.request(method, path, headers=headers | options.pop("headers", {}), **options)


async def made(api: Api, role: str, **more: Any) -> dict[str, Any]:
    answer = await api.control("POST", "/tokens", {"role": role, **more})
    assert answer.status_code == 201, answer.text
    return answer.json()


async def test_a_token_opens_a_session_and_the_session_opens_what_the_token_opens() -> None:
    async with serving(environment_name="production", environment_colour="#aa0000") as api:
        token = await made(api, "operator")
        answer = await sign_in(api, token["token"])
        set_cookie = cookie(answer)
        assert (set_cookie.key, set_cookie["path"], set_cookie["samesite"]) == ("dw", "/", "Strict")
        assert (set_cookie["httponly"], set_cookie["max-age"]) == (True, str(12 * 3600))
        assert token["token"] not in answer.text
        assert set_cookie.value not in answer.text
        me = (await ask(api, set_cookie.value, path="/api/session")).json()
        assert (me["role"], me["token_id"], me["method"]) == ("operator", token["token_id"], "session")
        assert (me["namespace"], me["payloads"], me["session_id"]) == (None, True, answer.json()["session_id"])
        assert me["environment"] == {"name": "production", "colour": "#aa0000"}
        assert me["expires_at"] > me["signed_in_at"]
        info = await api.control("GET", "/cluster/info")
        assert info.json()["environment"]["name"] == "production"
        assert (await ask(api, set_cookie.value)).status_code == 200
        start = {"workflow_type": "order", "workflow_id": "o-1"}
        assert (await ask(api, set_cookie.value, "POST", json=start)).status_code == 201
        assert (await ask(api, set_cookie.value, path="/api/tokens")).status_code == 403
        versionless = await ask(api, set_cookie.value, "POST", json=start, headers={**dict.fromkeys(VERSION, "")})
        assert versionless.json()["reason"] == "unsupported_control_plane_version"
        gone = await ask(api, set_cookie.value, "DELETE", "/api/session")
        assert (gone.json()["outcome"], SimpleCookie(gone.headers["set-cookie"])["dw"]["max-age"]) == (
            "signed_out",
            "0",
        )
        after = await ask(api, set_cookie.value)
        assert (after.status_code, after.json()["reason"]) == (401, "session_ended")


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "", "Origin": ""},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "HOST"},
        {"Origin": "ftp://HOST"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://HOST"},
        {},
    ],
)
async def test_a_cookie_that_another_site_sends_along_counts_for_nothing(headers: dict[str, str]) -> None:
    async with serving() as api:
        secret = cookie(await sign_in(api)).value
        api.http.cookies.clear()
        host = api.http.base_url.netloc.decode()
        sent = {name: value.replace("HOST", host) for name, value in headers.items()}
        start = {"workflow_type": "order", "workflow_id": "o-1"}
        for method, body in (("GET", None), ("POST", start)):
            answer = await api.http.request(
                method, "/api/workflows", json=body, headers=VERSION | {"Cookie": f"dw={secret}"} | sent
            )
            assert (answer.status_code, answer.json()["reason"]) == (403, "cross_site_request")
        assert (await api.control("GET", "/workflows/o-1")).status_code == 404, "nothing was stored"


async def test_a_server_without_tokens_serves_no_page_of_another_site() -> None:
    async with serving(auth="none") as api:
        host = str(api.http.base_url.netloc.decode())
        for trusted in ({}, PAGE, {"Sec-Fetch-Site": "none"}, {"Origin": f"http://{host}"}):
            answer = await api.http.post("/webhooks/start/order", headers=trusted)
            assert answer.status_code == 202, answer.text
        # None of these is asked for permission before by a browser: no content type and no header of ours is needed.
        for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "null"}):
            for path in ("/webhooks/start/order", "/webhooks/instances/order-1/terminate"):
                answer = await api.http.post(path, headers=headers)
                assert (answer.status_code, answer.json()["reason"]) == (403, "cross_site_request")


async def test_an_older_browser_names_its_origin_instead() -> None:
    async with serving() as api:
        secret = cookie(await sign_in(api)).value
        api.http.cookies.clear()
        headers = {"Cookie": f"dw={secret}", "Origin": str(api.http.base_url).rstrip("/")}
        assert (await api.http.get("/api/workflows", headers=VERSION | headers)).status_code == 200


async def test_another_site_signs_no_browser_in() -> None:
    async with serving() as api:
        for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example", "Sec-Fetch-Site": "none"}):
            answer = await sign_in(api, **headers)
            assert (answer.status_code, answer.json()["reason"]) == (403, "cross_site_request")
            assert "set-cookie" not in answer.headers
        versionless = await api.http.post("/api/session", json={"token": TOKEN}, headers=PAGE)
        assert versionless.json()["reason"] == "missing_control_plane_version"
        assert api.server.access.browser_sessions.kept.all() == []


async def test_a_session_survives_a_restart_and_its_secret_is_nowhere_on_disk(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'sessions.db'}"
    async with serving(store=store) as api:
        secret = cookie(await sign_in(api)).value
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert secret.encode() not in written
    assert TOKEN.encode() not in written
    async with serving(store=store) as api:
        assert (await ask(api, secret)).status_code == 200
    async with serving(store=store, token="another") as api:
        answer = await ask(api, secret)
        assert (answer.status_code, answer.json()["reason"]) == (401, "session_ended"), "it ended with its token"


@pytest.mark.parametrize("verb", ["revoke", "rotate"])
async def test_a_session_ends_with_its_token(verb: str) -> None:
    async with serving() as api:
        token = await made(api, "viewer")
        secret = cookie(await sign_in(api, token["token"])).value
        other = cookie(await sign_in(api)).value
        assert (await ask(api, secret)).status_code == 200
        if verb == "revoke":
            await api.control("DELETE", f"/tokens/{token['token_id']}")
        else:
            await api.control("POST", f"/tokens/{token['token_id']}/rotate", {})
        answer = await ask(api, secret)
        assert (answer.status_code, answer.json()["reason"]) == (401, "session_ended")
        assert (await ask(api, other)).status_code == 200, "that of another token goes on"
        assert len(api.server.access.browser_sessions.kept.all()) == 1


async def test_a_session_ends_with_a_token_that_another_process_has_revoked(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'shared.db'}"
    async with serving(store=store, still=False) as api, serving(store=store, still=False) as other:
        token = await made(api, "viewer")
        secret = cookie(await sign_in(api, token["token"])).value
        await until_answered(other, token["token"], 200)
        assert (await other.control("DELETE", f"/tokens/{token['token_id']}")).status_code == 200
        async with asyncio.timeout(8):
            while (await ask(api, secret)).status_code != 401:
                await asyncio.sleep(0.02)


async def until_answered(api: Api, token: str, status: int) -> None:
    async with asyncio.timeout(8):
        while (await api.control("GET", "/workflows", token=token)).status_code != status:
            await asyncio.sleep(0.02)


async def test_administrators_see_who_is_signed_in_and_end_sessions() -> None:
    async with serving() as api:
        viewer = await made(api, "viewer")
        first = cookie(await sign_in(api, viewer["token"])).value
        answer = await sign_in(api, viewer["token"])
        listed = (await api.control("GET", "/sessions")).json()["sessions"]
        assert [session["token_id"] for session in listed] == [viewer["token_id"]] * 2
        (newest,) = (session for session in listed if session["session_id"] == answer.json()["session_id"])
        assert (newest["role"], newest["payloads"], newest["namespace"]) == ("viewer", True, None)
        assert newest["expires_at"] > newest["created_at"]
        assert (await ask(api, first, path="/api/sessions")).status_code == 403
        would = await api.control("DELETE", f"/sessions/{newest['session_id']}?dry_run=1")
        assert [entry["kind"] for entry in would.json()["would_write"]["registry"]] == ["browser_session"]
        gone = await api.control("DELETE", f"/sessions/{newest['session_id']}")
        assert gone.json()["outcome"] == "ended"
        assert (await ask(api, cookie(answer).value)).json()["reason"] == "session_ended"
        assert (await ask(api, first)).status_code == 200
        again = await api.control("DELETE", f"/sessions/{newest['session_id']}")
        assert (again.status_code, again.json()["reason"]) == (404, "session_not_found")
        await api.control("POST", "/namespaces", {"name": "other"})
        bound = await made(api, "admin", namespace="other")
        headers = VERSION | {"Authorization": f"Bearer {bound['token']}", "X-Namespace": "other"}
        assert (await api.http.get("/api/sessions", headers=headers)).json()["sessions"] == []
        audit = (await api.control("GET", "/audit?command_type=session.end")).json()["entries"]
        assert [entry["target_name"] for entry in audit] == [newest["session_id"]]


async def test_a_session_ends_after_its_lifetime() -> None:
    async with serving(session_lifetime_seconds=3600) as api:
        secret = cookie(await sign_in(api)).value
        await api.world.advance(3599)
        assert (await ask(api, secret)).status_code == 200
        await api.world.advance(1)
        assert (await ask(api, secret)).json()["reason"] == "session_ended"
        await api.server.access.browser_sessions.forget()
        assert api.server.access.browser_sessions.kept.all() == []


async def test_the_oldest_sessions_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backstay.server.access.browser.MOST", 3)
    async with serving() as api:
        opened: list[str] = []
        for _ in range(4):
            opened.append(cookie(await sign_in(api)).value)
            await api.world.advance(1)
        assert [(await ask(api, secret)).status_code for secret in opened] == [401, 200, 200, 200]


async def test_one_token_signs_no_other_token_out_however_often_it_signs_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backstay.server.access.browser.MOST", 3)
    async with serving() as api:
        admin = cookie(await sign_in(api)).value
        viewer = await made(api, "viewer")
        for _ in range(4):
            await api.world.advance(1)
            assert (await sign_in(api, viewer["token"])).status_code == 201
        assert (await ask(api, admin)).status_code == 200
        assert len(api.server.access.browser_sessions.kept.all()) == 3


async def test_the_tokens_of_a_namespace_sign_no_other_token_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its administrators can make as many tokens as they like."""
    monkeypatch.setattr("backstay.server.access.browser.MOST", 3)
    async with serving() as api:
        admin = cookie(await sign_in(api)).value
        for _ in range(4):
            await api.world.advance(1)
            viewer = await made(api, "viewer", namespace="default")
            assert (await sign_in(api, viewer["token"])).status_code == 201
        assert (await ask(api, admin)).status_code == 200


async def test_the_eleventh_wrong_token_of_a_minute_is_refused_and_a_right_one_never() -> None:
    """People behind one proxy have one address: a stranger among them must not keep the others out."""
    async with serving() as api:
        for _ in range(10):
            answer = await sign_in(api, "guess")
            assert (answer.status_code, answer.json()["reason"]) == (401, "wrong_token")
        answer = await sign_in(api, "guess")
        assert (answer.status_code, answer.json()["reason"]) == (429, "too_many_wrong_tokens")
        assert 0 < int(answer.headers["retry-after"]) <= 60
        assert (await sign_in(api)).status_code == 201
        await api.world.advance(61)
        assert (await sign_in(api, "guess")).status_code == 401


def test_wrong_tokens_of_many_addresses_take_little_room() -> None:
    now = 0
    wrong = WrongTokens(lambda: now)
    for address in range(ADDRESSES + 100):
        wrong.add(f"10.{address >> 16}.{address >> 8 & 255}.{address & 255}")
    assert len(wrong._counts) == ADDRESSES
    for host in range(10):
        wrong.add(f"2001:db8::{host:x}")
    with pytest.raises(HttpError, match="10 wrong tokens"):
        wrong.check("2001:db8::ffff")  # of the same network
    wrong.check("2001:db8:0:1::1")
    now = 61 * SECOND
    wrong.check("2001:db8::ffff")


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({}, 422, "validation_failed"),
        ({"token": ""}, 422, "validation_failed"),
        ({"token": 7}, 422, "validation_failed"),
        ({"token": TOKEN, "role": "admin"}, 422, "validation_failed"),
        ({"token": "x" * 1025}, 422, "validation_failed"),
        ({"token": "x" * 5000}, 413, "payload_too_large"),
    ],
)
async def test_bad_requests_open_no_session(body: Any, status: int, reason: str) -> None:
    async with serving() as api:
        answer = await api.http.post("/api/session", json=body, headers=VERSION | PAGE)
        assert (answer.status_code, answer.json()["reason"]) == (status, reason)
        assert "set-cookie" not in answer.headers
        assert api.server.access.browser_sessions.kept.all() == []


async def test_a_large_body_without_a_length_is_not_collected() -> None:
    async with serving() as api:

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(64):
                yield b"x" * 1024

        answer = await api.http.post("/api/session", content=endless(), headers=VERSION | PAGE)
        assert (answer.status_code, answer.json()["configured_limit"]) == (413, 4096)


async def test_a_worker_has_no_business_in_a_browser() -> None:
    async with serving(worker_token="w") as api:
        answer = await sign_in(api, "w")
        assert (answer.status_code, answer.json()["reason"]) == (403, "forbidden")
        secret = cookie(await sign_in(api)).value  # a token of every role
        poll = await ask(api, secret, "POST", "/api/worker/workflow-tasks/poll", json={})
        assert poll.status_code == 403
        assert (await ask(api, secret, path="/api/session")).json()["roles"] == ["admin", "operator", "viewer"]


@pytest.mark.parametrize("secret", [None, "", "nonsense", "a" * 5000])
async def test_without_a_session_the_server_says_how_to_get_one(secret: str | None) -> None:
    async with serving(environment_name="production", environment_colour="#aa0000") as api:
        answer = await ask(api, secret, path="/api/session")
        assert (answer.status_code, answer.json()["authentication"]) == (401, "token")
        assert answer.json()["environment"] == {"name": "production", "colour": "#aa0000"}
        assert "dw token create --role viewer" in answer.json()["remediation"]
        assert (await ask(api, secret, "DELETE", "/api/session")).status_code == 401


async def test_a_caller_without_a_cookie_learns_who_it_is_and_has_nothing_to_end() -> None:
    async with serving() as api:
        me = (await api.control("GET", "/session")).json()
        assert (me["method"], me["role"], me["token_id"], me["session_id"]) == ("token", "admin", "setting:token", None)
        ended = await api.control("DELETE", "/session")
        assert (ended.status_code, ended.json()["field"]) == (422, "cookie")


async def test_a_server_without_credentials_needs_no_signing_in() -> None:
    async with serving(auth="none") as api:
        me = (await api.http.get("/api/session")).json()
        assert (me["authenticated"], me["authentication"], me["role"]) == (False, "none", "admin")
        answer = await sign_in(api)
        assert (answer.status_code, answer.json()["reason"]) == (409, "sign_in_not_needed")


async def test_a_server_of_signed_requests_lets_viewers_in() -> None:
    async with serving(auth="signature", signature_key="k", operator_token="op") as api:
        lost = await api.http.get("/api/session")
        assert (lost.status_code, lost.json()["authentication"]) == (401, "signature")
        assert "dw token create --role viewer" in lost.json()["remediation"]

        async def sign(method: str, path: str, body: bytes = b"") -> httpx.Response:
            now = str(int(api.server.now // SECOND))
            signature = signed(b"k", method, path, "", now, f"{time.perf_counter_ns()}", body)
            nonce = {"X-Signature-Nonce": f"{time.perf_counter_ns()}"}
            signature = signed(b"k", method, path, "", now, nonce["X-Signature-Nonce"], body)
            headers = VERSION | nonce | {"X-Signature": signature, "X-Signature-Time": now}
            return await api.http.request(method, path, content=body, headers=headers)

        assert (await sign("GET", "/api/session")).json()["method"] == "signature"
        viewer = (await sign("POST", "/api/tokens", b'{"role":"viewer"}')).json()["token"]
        operator = (await sign("POST", "/api/tokens", b'{"role":"operator"}')).json()["token"]
        for token in (operator, "op"):
            assert (await sign_in(api, token)).json()["reason"] == "viewer_token_needed"
        secret = cookie(await sign_in(api, viewer)).value
        assert (await ask(api, secret)).status_code == 200
        assert (await ask(api, secret, "POST", json={"workflow_type": "order"})).status_code == 403
        bare = await api.http.get("/api/workflows", headers=VERSION | {"Authorization": f"Bearer {viewer}"})
        assert bare.status_code == 401, "a token alone still opens nothing"


async def test_on_tls_the_cookie_is_for_this_host_and_tls_alone() -> None:
    async with serving() as api:
        proxied = await sign_in(api, Origin=f"https://{api.http.base_url.netloc.decode()}")
        assert (cookie(proxied).key, cookie(proxied)["secure"]) == ("__Host-dw", True)
        api.http.cookies.clear()
        headers = VERSION | PAGE | {"Cookie": f"__Host-dw={cookie(proxied).value}"}
        assert (await api.http.get("/api/workflows", headers=headers)).status_code == 200
        tls = BrowserSessions(api.server.store, lambda: 0, 60, tls=True)
        assert tls.cookie({}, "s", 60).startswith("__Host-dw=s; ")
        assert tls.cookie({}, "s", 60).endswith("; Secure")
        assert tls.secret(PAGE_HEADERS | {"cookie": "dw=planted"}) is None, "whoever serves plain HTTP could plant it"
        assert tls.secret(PAGE_HEADERS | {"cookie": "dw=planted; __Host-dw=mine"}) == "mine"
        assert not tls.same_origin({"origin": "http://h", "host": "h"})
        assert tls.same_origin({"origin": "https://h", "host": "h"})


PAGE_HEADERS = {"sec-fetch-site": "same-origin"}
