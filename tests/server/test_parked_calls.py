"""Calls that wait count against `max_parked_polls`, whoever ends the wait."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from backstay.protocol.native import client as calls

from .kit import TOKEN, serving, until

HEADERS = {"Authorization": f"Bearer {TOKEN}", calls.HEADER: str(calls.VERSION)}
MOST = 3


@pytest.mark.parametrize(
    ("verb", "more"),
    [
        ("await-result", {}),
        ("read-stream", {"stream_name": "out"}),
        ("update-workflow", {"update_name": "amend"}),
    ],
)
async def test_no_more_calls_wait_than_may(verb: str, more: dict[str, Any]) -> None:
    async with serving(still=False, max_parked_polls=MOST, query_timeout_seconds=0.2) as api:
        await api.start("o-1")
        asked = [verb, {"workflow_id": "o-1", "wait_seconds": 0.05} | more]
        many = await api.http.post(calls.MANY, json={"calls": [asked] * (MOST + 2)}, headers=HEADERS)
        said = [part for line in many.text.splitlines() if line for part in msgspec.json.decode(line)]
        assert sum(len(one) == 3 and one[2] == 429 for one in said) == 2, said
        await until(lambda: len(api.server.parked) == 0)
        at_once = [verb, {"workflow_id": "o-1", "wait_seconds": 0} | more]
        answer = await api.http.post(calls.MANY, json={"calls": [at_once]}, headers=HEADERS)
        assert ",429]" not in answer.text


async def test_a_call_whose_caller_has_hung_up_counts_until_its_wait_is_over() -> None:
    async with serving(still=False) as api:
        await api.start("o-1")
        body = {"workflow_id": "o-1", "stream_name": "out", "wait_seconds": 0.3}
        sent: list[tuple[str, Any, int]] = [
            (f"{calls.PATH}read-stream", body, 1),
            (calls.MANY, {"calls": [["read-stream", body]] * 3}, 3),
        ]
        for path, asked, count in sent:
            asking = asyncio.create_task(api.http.post(path, json=asked, headers=HEADERS))
            await until(lambda count=count: len(api.server.parked) == count)
            asking.cancel()
            await until(lambda: len(api.server.parked) == 0)
