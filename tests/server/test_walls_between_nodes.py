"""A token that is bound to one namespace reaches nothing outside it through another node either.

`teamb` has one of everything at the node that owns all instances. `teama` knows the ids and asks a node that owns none: it hands
most of what it is asked on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from backstay.kernel.message import Refused
from backstay.protocol.native import worker as wire
from backstay.server.routes import ROUTES
from backstay.store.postgresql import PostgresqlStore

from .kit import Api
from .test_links import Two, two
from .test_walls import ME, VERSIONS, A, B, Tenants, _own, _refused, _role, _told

ROWS = {
    "workflow": f"select * from workflow where namespace like '{B}%'",
    "run": f"select * from run where namespace like '{B}%'",
    "event": f"select * from event where run in (select key from run where namespace like '{B}%')",
    "task": f"select * from task where workflow in (select key from workflow where namespace like '{B}%')",
    "command": f"select * from command where workflow in (select key from workflow where namespace like '{B}%')",
    "tokens": "select * from registry where kind in ('token', 'node_drain')",
}


PATIENCE = 600  # seconds
State = tuple[dict[str, list[str]], list[Any]]


class TenantsOfTwoNodes(Tenants):
    """`teamb` is at one node; requests of `teama` go to the other."""

    def __init__(self, nodes: Two) -> None:
        super().__init__(nodes.there)
        self.front: Api = nodes.front

    async def send(
        self, who: str, role: str, method: str, path: str, body: Any = None, namespace: str | None = None, **more: str
    ) -> httpx.Response:
        headers = VERSIONS | {"Authorization": f"Bearer {self.tokens[who, role]}", "X-Namespace": namespace or who}
        http = (self.front if who == A else self.api).http
        return await http.request(method, path, json=body, headers=headers | more, timeout=PATIENCE)

    async def state(self) -> State:
        """Everything of `teamb`, on disk and in memory, and the wishes of administrators."""
        store = self.api.server.store
        assert isinstance(store, PostgresqlStore)
        rows = {name: sorted(map(repr, await store._read(query))) for name, query in ROWS.items()}
        return rows, self.waiting()


def _changes(before: State, after: State) -> list[Any]:
    """What differs: rows by table, and what is in memory."""
    rows = [(name, set(before[0][name]) ^ set(after[0][name])) for name in ROWS if before[0][name] != after[0][name]]
    return [*rows, *(pair for pair in zip(before[1], after[1], strict=True) if pair[0] != pair[1])]


@asynccontextmanager
async def tenants(store: str) -> AsyncIterator[TenantsOfTwoNodes]:
    # The clock is the database's and cannot stand still, so what `teamb` has asked must outlast a slow test.
    async with two(store, query_timeout_seconds=PATIENCE) as nodes:
        both = TenantsOfTwoNodes(nodes)
        try:
            await both.furnish()
            yield both
        finally:
            for api in nodes:
                for question in list(api.server.questions._open.values()):
                    api.server.questions.refuse(question, Refused("query_rejected", "the test is over"))
            await asyncio.gather(*both.asked, return_exceptions=True)


async def test_ids_of_another_namespace_open_nothing_at_another_node(postgresql_url: str) -> None:
    async with tenants(postgresql_url) as both:
        both.ids["node"] = str(both.api.server.node_id())
        before = await both.state()
        wrong: list[str] = []
        for route in ROUTES:
            if not route.needs_credential:
                continue
            for path in both.paths(route):
                for body in both.bodies(route):
                    answer = await both.send(A, _role(route), route.method, path, body)
                    if not (answer.status_code < 500 if _own(route) else _refused(answer)) or _told(answer):
                        wrong.append(f"{route.method} {path}: {answer.status_code} {answer.text[:200]}")
                    after = await both.state()
                    if after != before:
                        wrong.append(f"{route.method} {path}: changed something of {B}: {_changes(before, after)}")
                        before = after
        assert not wrong, "\n".join(wrong)


async def test_reports_of_a_worker_of_our_own_reach_only_its_namespace_through_any_node(postgresql_url: str) -> None:
    async with tenants(postgresql_url) as both:
        before = await both.state()
        task, activity = both.tasks["workflow"], both.tasks["activity"]
        keys = {entry.instance.workflow_id: key for key, entry in both.api.server.engine.cache._entries.items()}
        run_id, step, attempt = activity["activity_attempt_id"].split("-")
        reports = [
            ["task", keys["plain-b"], task["task_id"], 1, [{"type": "fail_workflow", "message": "taken"}]],
            ["activity", keys["job-b"], run_id, int(step), int(attempt), None],
            ["beat", keys["job-b"], run_id, int(step), int(attempt), None],
            ["told", both.tasks["query"]["task_id"], 1],
            ["told", both.tasks["validation"]["task_id"], 1],
        ]
        held = [[task["task_id"], 1, keys["plain-b"]], [activity["task_id"], 1, keys["job-b"]]]
        opening = {"worker_id": ME, "queues": ["q"], "holding": held, "total": [1, 1, 1]}
        for node in (both.front.server.node_id(), both.api.server.node_id()):
            to = {wire.TO_HEADER: str(node)}
            named = opening | {"named_by": both.front.server.node_id()}
            opened = await both.send(A, "worker", "POST", wire.OPEN, named, **to)
            assert opened.json()["node"] == node
            body = {
                "worker_id": ME,
                "station": opened.json()["station"],
                "holding": held,
                "elsewhere": [],
                "slots": [1, 1, 1],
            }
            for again in (False, True):
                answer = await both.send(
                    A, "worker", "POST", wire.EXCHANGE, body | {"reports": reports, "again": again}
                )
                assert answer.status_code == 200, answer.text
                refused = [said[0]["reason"] for said in answer.json()["answers"] if said and said[0]]
                assert refused == ["task_not_found"] * 3
                assert not _told(answer)
            page = {"worker_id": ME, "station": body["station"], "task_id": task["task_id"], "attempt": 1, "after": 0}
            shown = await both.send(A, "worker", "POST", wire.HISTORY, page)
            assert (shown.status_code, shown.json()["reason"]) == (404, "task_not_found")
        assert await both.state() == before


async def test_a_poll_with_an_id_of_another_namespace_is_another_poll_at_any_node(postgresql_url: str) -> None:
    async with tenants(postgresql_url) as both:
        before = await both.state()
        for kind in ("workflow", "activity", "query", "update-validation"):
            for number in range(5):
                body = {
                    "worker_id": ME,
                    "task_queue": "q",
                    "poll_request_id": f"poll-{kind}-{number}",
                    "timeout_seconds": 0,
                }
                answer = await both.send(A, "worker", "POST", f"/api/worker/{kind}-tasks/poll", body)
                assert (answer.json()["task"], _told(answer)) == (None, False)
        assert await both.state() == before
