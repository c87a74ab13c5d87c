"""Signed requests: a webhook by its body, everything else by all that it asks for, once, and now."""

from __future__ import annotations

import asyncio
import hmac
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from backstay.kernel.values import SECOND
from backstay.server.access import signatures, used_signatures
from backstay.server.routes import ROUTES

from .kit import Api, serving, until

KEY = "k3y"
SIGNED = {"auth": "signature", "signature_key": KEY, "token": None}
VERSIONS = {
    "X-Durable-Workflow-Control-Plane-Version": "2",
    "X-Durable-Workflow-Protocol-Version": "1.20",
    "X-Backstay-Protocol": "1",
}
NOW = 1_800_000_000  # the clock of a server that stands still
START = json.dumps({"workflow_type": "order", "workflow_id": "o-1"}).encode()


def by_body(body: bytes) -> str:
    return hmac.new(KEY.encode(), body, sha256).hexdigest()


def by_hand(method: str, target: str, body: bytes, namespace: str, time: int, nonce: str) -> str:
    """As anybody would write it who has read the documentation."""
    text = f"{method}\n{target}\n{namespace}\n{time}\n{nonce}\n{sha256(body).hexdigest()}"
    return "v1=" + hmac.new(KEY.encode(), text.encode(), sha256).hexdigest()


async def send(
    api: Api,
    method: str,
    target: str,
    body: bytes = b"",
    *,
    signature: str | None = None,
    namespace: str = "",
    time: int = NOW,
    nonce: str = "1",
) -> httpx.Response:
    headers = VERSIONS | {"X-Signature-Time": str(time), "X-Signature-Nonce": nonce}
    headers["X-Signature"] = signature or by_hand(method, target, body, namespace, time, nonce)
    if namespace:
        headers["X-Namespace"] = namespace
    if body:
        headers["Content-Type"] = "application/json"
    return await api.http.request(method, target, content=body or None, headers=headers)


async def test_a_webhook_is_opened_by_the_signature_of_its_body() -> None:
    async with serving(**SIGNED) as api:
        for signature, status in (
            (by_body(START), 202),
            (f"sha256={by_body(START)}", 409),  # it has been started
            ("0" * 64, 401),
            (by_body(START + b" "), 401),
            ("\u00e9", 401),
        ):
            headers = {b"X-Signature": signature.encode(), b"Content-Type": b"application/json"}
            answer = await api.http.post("/webhooks/start/order", content=START, headers=headers)
            assert answer.status_code == status, answer.text
        assert (await api.http.post("/webhooks/start/order", content=START)).status_code == 401


async def test_the_signature_of_a_body_opens_webhooks_only_and_never_nothing_at_all() -> None:
    async with serving(**SIGNED) as api:
        for route in ROUTES:
            if route.plane == "open" or (route.method, route.path) == ("POST", "/api/session"):
                continue
            bodies = [b""] if route.method == "GET" or route.path.startswith("/webhooks/") else [b"", START]
            for body in bodies:
                answer = await send(api, route.method, route.path, body, signature=by_body(body))
                assert (answer.status_code, answer.json()["reason"]) == (401, "unauthorized"), route.path


async def test_a_signature_opens_what_it_was_made_for() -> None:
    async with serving(**SIGNED) as api:
        assert (await send(api, "POST", "/api/workflows", START)).status_code == 201
        assert (await send(api, "GET", "/api/workflows/o-1")).status_code == 200
        assert (await send(api, "GET", "/api/workflows?page_size=1", nonce="2")).status_code == 200
        assert (await send(api, "POST", "/api/namespaces", b'{"name": "other"}')).status_code == 201
        assert (await send(api, "GET", "/api/workflows", namespace="other")).json()["workflows"] == []
        own = await send(api, "POST", "/api/call/describe-workflow", b'{"workflow_id": "o-1"}')
        assert own.json()["workflow_id"] == "o-1"


GOOD: dict[str, Any] = {"method": "POST", "target": "/api/workflows?a=b", "body": START, "namespace": "default"}


@pytest.mark.parametrize(
    "change",
    [
        {"method": "PUT"},
        {"target": "/api/activities?a=b"},
        {"target": "/api/workflows?a=c"},
        {"target": "/api/workflows"},
        {"body": START.replace(b"o-1", b"o-2")},
        {"namespace": "other"},
        {"namespace": ""},
        {"time": NOW + 1},
        {"nonce": "2"},
    ],
)
async def test_a_signature_opens_no_other_request(change: dict[str, Any]) -> None:
    async with serving(**SIGNED) as api:
        asked = {"time": NOW, "nonce": "1"} | GOOD
        signature = by_hand(**asked)
        assert (await send(api, **(asked | change), signature=signature)).status_code in (401, 405)
        assert (await send(api, **asked, signature=signature)).status_code == 201


async def test_a_signature_opens_its_request_once() -> None:
    async with serving(**SIGNED) as api:
        assert (await send(api, "GET", "/api/workflows")).status_code == 200
        again = await send(api, "GET", "/api/workflows")
        assert (again.status_code, "received before" in again.json()["message"]) == (401, True)
        assert (await send(api, "GET", "/api/workflows", nonce="2")).status_code == 200
        await api.world.advance(299)
        assert (await send(api, "GET", "/api/workflows")).status_code == 401, "for as long as it counts"


@pytest.mark.parametrize("late", [-301, 301, -(10**9)])
async def test_a_signature_opens_nothing_at_another_time(late: int) -> None:
    async with serving(**SIGNED) as api:
        answer = await send(api, "GET", "/api/workflows", time=NOW + late)
        assert (answer.status_code, "X-Signature-Time" in answer.json()["message"]) == (401, True)
        assert (await send(api, "GET", "/api/workflows", time=NOW + late // abs(late) * 300)).status_code == 200


async def test_a_time_that_is_none_is_refused() -> None:
    async with serving(**SIGNED) as api:
        for time in ("", "soon", "9" * 30, "-5", "1800000000.5"):
            signature = signatures.signed(KEY.encode(), "GET", "/api/workflows", "", time, "1", b"")
            headers = VERSIONS | {"X-Signature": signature, "X-Signature-Time": time, "X-Signature-Nonce": "1"}
            assert (await api.http.get("/api/workflows", headers=headers)).status_code == 401


async def test_used_signatures_are_bounded_and_never_forgotten_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(used_signatures, "REMEMBERED", 3)
    async with serving(**SIGNED) as api:
        for nonce in "abc":
            assert (await send(api, "GET", "/api/workflows", nonce=nonce)).status_code == 200
        full = await send(api, "GET", "/api/workflows", nonce="d")
        assert (full.status_code, full.json()["reason"]) == (429, "signature_capacity_exhausted")
        ahead = NOW + 300  # as far ahead as a clock may be
        await api.world.advance(601)
        assert (await send(api, "GET", "/api/workflows", nonce="e", time=ahead + 301)).status_code == 200
        kept = api.server.access.used_signatures
        await api.world.advance(601)
        assert (await send(api, "GET", "/api/workflows", nonce="f", time=NOW + 1202)).status_code == 200
        assert len(kept._seen) + len(kept._before) == 2


# -- several servers


async def signal(api: Api, nonce: str, time: int) -> httpx.Response:
    return await send(api, "POST", "/api/workflows/o-1/signal/paid", b'{"input": [1]}', nonce=nonce, time=time)


async def test_a_signature_opens_its_request_once_at_all_nodes_and_after_a_restart(postgresql_url: str) -> None:
    signing = {**SIGNED, "store": postgresql_url, "still": False}
    async with serving(**signing) as one, serving(**signing) as other:
        now = one.server.now // SECOND
        assert (await send(one, "POST", "/api/workflows", START, time=now)).status_code == 201
        first = await asyncio.gather(*(signal(api, "2", now) for api in (one, other, one, other)))
        assert sorted(answer.status_code for answer in first) == [202, 401, 401, 401]
    async with serving(**signing) as third:
        again = await signal(third, "2", now)
        assert (again.status_code, "received before" in again.json()["message"]) == (401, True)
        assert (await signal(third, "3", now)).status_code == 202
        events = (await send(third, "GET", "/api/workflows/o-1/history", time=now)).json()["events"]
        assert [event["event_type"] for event in events].count("SignalReceived") == 2


async def test_a_signature_opens_its_request_once_at_a_file_after_a_restart(tmp_path: Path) -> None:
    signing = {**SIGNED, "store": f"sqlite:{tmp_path}/app.db"}
    async with serving(**signing) as api:
        assert (await send(api, "POST", "/api/workflows", START)).status_code == 201
        assert (await signal(api, "2", NOW)).status_code == 202
    async with serving(**signing) as api:
        assert (await signal(api, "2", NOW)).status_code == 401
        assert (await signal(api, "3", NOW)).status_code == 202


async def test_signatures_that_have_expired_are_removed(tmp_path: Path) -> None:
    async with serving(**SIGNED, store=f"sqlite:{tmp_path}/app.db") as api:
        for nonce in "abc":
            assert (await send(api, "GET", "/api/workflows", nonce=nonce)).status_code == 200
        store, span = api.server.store, NOW // used_signatures.SPAN
        assert len(await store.kept(f"signature:{span}")) == 3
        await api.world.advance(300)
        await api.server.access.used_signatures.forget()
        assert len(await store.kept(f"signature:{span}")) == 3, "they are valid yet"
        await api.world.advance(2 * used_signatures.SPAN)
        await api.server.access.used_signatures.forget()
        assert await store.kept(f"signature:{span}") == await store.kept(used_signatures.KINDS) == []


async def test_a_signed_request_that_is_handed_on_is_used_once(postgresql_url: str) -> None:
    """The node that gets it uses its signature; the one that it is handed on to takes its word for that."""
    signing = {**SIGNED, "store": postgresql_url, "still": False}
    async with serving(**signing) as one, serving(**signing) as other:
        await until(lambda: other.server.node_id() in one.server.node.shards.nodes)
        target = f"/api/worker/query-tasks/{other.server.node_id()}.x/complete"
        body = b'{"lease_owner": "w", "query_task_attempt": 1}'
        now = one.server.now // SECOND
        for status, reason in ((404, "query_task_not_found"), (401, "unauthorized")):
            answer = await send(one, "POST", target, body, time=now)
            assert (answer.status_code, answer.json()["reason"]) == (status, reason)
        assert (await send(other, "POST", target, body, time=now)).status_code == 401
