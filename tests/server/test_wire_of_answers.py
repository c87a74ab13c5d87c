"""The bytes of answers that published clients read: names, their order and values stay as they were recorded.

`python -m tests.server.test_wire_of_answers` records them again, after a change that is meant. Ids, ports, versions and paths of
this machine are replaced by names.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .kit import Api, blob, serving

RECORDED = Path(__file__).with_name("wire_of_answers.jsonl")
RUN = "/workflows/o-1"
_VARIABLE = re.compile(
    "|".join(
        [
            r"(?P<id>\b[0-9a-hjkmnp-tv-zA-HJKMNP-TV-Z]{26}\b)",
            r"(?P<address>127\.0\.0\.1:\d+)",
            r'(?P<number>(?<="id":")\d{12,}(?="))',
            r'(?P<process>(?<="process_id":)\d+)',
            rf"(?P<host>{re.escape(socket.gethostname())}(:\d+)?)",
            r'(?P<token>(?<="next_page_token":")[^"]*(?="))',
            rf'(?P<version>(?<="version":"){re.escape(version("backstay"))}(?="))',
        ]
    )
)


async def story(api: Api) -> list[tuple[str, int, str]]:
    """Every answer of one small world, by the request that it was asked with."""
    answers: list[tuple[str, int, str]] = []

    async def ask(method: str, path: str, body: Any = None, *, name: str = "") -> Any:
        if path.startswith("/webhooks"):
            headers = {"Authorization": "Bearer secret"}
            answer = await api.http.request(method, path, json=body, headers=headers)
        else:
            answer = await api.control(method, path, body)
        answers.append((f"{method} {name or path}", answer.status_code, answer.text))
        return answer.json() if answer.headers["content-type"] == "application/json" else None

    async def parts(workflow_id: str) -> None:
        await ask("GET", f"/workflows/{workflow_id}")
        run = (await api.describe(workflow_id))["run_id"]
        await ask("GET", f"/workflows/{workflow_id}/runs")
        await ask("GET", f"/workflows/{workflow_id}/history?page_size=3")
        place = f"/workflows/{workflow_id}/runs"
        await ask("GET", f"{place}/{run}", name=f"{place}/RUN")

    await api.register()
    await ask("POST", "/reservations", {"workflow_type": "order", "workflow_id": "later"})
    await ask("GET", "/workflows/later")
    begun = {"workflow_type": "order", "workflow_id": "o-1", "task_queue": "q", "input": blob([1, "a"])}
    about = {"memo": {"note": "m"}, "business_key": "b", "visibility_labels": {"k": "v"}}
    await ask("POST", "/workflows", begun | about)
    await ask("POST", "/workflows", begun)
    await ask("POST", "/workflows", begun | {"duplicate_policy": "use-existing"})
    await parts("o-1")
    await ask("POST", f"{RUN}/signal/go", {"input": [1], "request_id": "s-1"})
    await ask("POST", f"{RUN}/signal/go", {"input": [1], "request_id": "s-1"})
    await ask("POST", f"{RUN}/signal-with-start/go", {"workflow_type": "order", "task_queue": "q"})
    await ask("POST", f"{RUN}/message-streams/mail/messages", {"message_id": "m-1", "input": [1]})
    await ask("POST", f"{RUN}/update/change", {"input": [2], "wait_timeout_seconds": 0})
    task = await api.poll()
    group = {"parallel_group_path": []}
    charge = {"type": "schedule_activity", "activity_type": "charge", "arguments": blob([7]), **group}
    child = {"type": "start_child_workflow", "workflow_type": "order"}
    await api.complete(task, charge, charge, {"type": "start_timer", "delay_seconds": 60}, child)
    work = await api.poll("activity")
    await api.activity("heartbeat", work, details={"done": 1})
    await parts("o-1")
    await ask("GET", f"{RUN}/events/99")
    await api.activity("complete", work, result=blob("paid"))
    other = await api.poll("activity")
    await api.activity("fail", other, failure={"message": "no", "type": "Bad", "non_retryable": True})
    tasks = [await api.poll(), await api.poll()]
    for task in sorted(tasks, key=lambda task: task["workflow_id"] != "o-1"):
        if task["workflow_id"] == "o-1":
            await api.complete(task, {"type": "complete_workflow", "result": blob({"n": 1.5})})
        else:
            await api.complete(task, {"type": "fail_workflow", "message": "bad", "exception_type": "Bad"})
    await parts("o-1")
    await ask("GET", "/workflows?page_size=2")
    await ask("GET", f"{RUN}/runs?fields=run_id,status")

    await api.start("asked")
    asking = asyncio.create_task(ask("POST", "/workflows/asked/query/state", {"input": [1]}))
    question = None
    while question is None:
        await asyncio.sleep(0)
        question = await api.poll("query")
    answer = {"lease_owner": "worker-1", "query_task_attempt": 1, "result": 1}
    await api.worker(f"query-tasks/{question['task_id']}/complete", answer)
    await asking

    await api.complete(await api.poll(), charge)
    await api.start("updated")
    for end in ({"type": "complete_update", "result": blob(3)}, {"type": "fail_update", "message": "no"}):
        update = await ask("POST", "/workflows/updated/update/change", {"input": [2], "wait_timeout_seconds": 0})
        place = f"/workflows/updated/updates/{update['update_id']}"
        await ask("GET", place, name="/workflows/updated/updates/UPDATE")
        await api.complete(await api.poll(), {**end, "update_id": update["update_id"]})
        await ask("GET", place, name="/workflows/updated/updates/UPDATE")
    await parts("updated")
    await ask("POST", "/webhooks/start/order", {"workflow_id": "w-1", "task_queue": "q"})
    await ask("POST", "/webhooks/start/order/signals/go", {"workflow_id": "w-2", "task_queue": "q"})
    await ask("POST", "/webhooks/instances/w-1/signals/go", {})
    await ask("POST", "/webhooks/instances/w-1/updates/go", {"wait_timeout_seconds": 0})
    await ask("GET", "/webhooks/instances/w-1/describe")
    run = (await api.describe("asked"))["run_id"]
    claim = f"/webhooks/activity-tasks/{run}-a1.1/claim"
    claimed = await ask("POST", claim, {"lease_owner": "me"}, name="/webhooks/claim")
    attempt = (claimed.get("task") or claimed).get("activity_attempt_id")
    place = f"/webhooks/activity-attempts/{attempt}"
    await ask("GET", place, name="/webhooks/attempt")
    await ask("POST", f"{place}/heartbeat", {"details": 1}, name="/webhooks/attempt/heartbeat")
    await ask("POST", f"{place}/complete", {"result": 1}, name="/webhooks/attempt/complete")
    await ask("POST", f"{place}/fail", {"failure": {"message": "x"}}, name="/webhooks/attempt/fail")

    await ask("GET", "/health")
    await ask("GET", "/ready")
    await ask("GET", "/workers/worker-1")
    for path, body in (("repair", {}), ("retention", {}), ("activity-timeouts", {})):
        await ask("POST", f"/system/{path}/pass", body)
        await ask("POST", f"/system/{path}/pass?dry_run=1", body)
    await ask("POST", "/system/repair/pass", {"run_ids": ["none"], "instance_id": "none"})
    await ask("POST", "/system/retention/pass", {"run_ids": ["none", run]}, name="/system/retention/pass named")
    await ask("POST", "/system/activity-timeouts/pass", {"execution_ids": ["none"]})
    await ask("POST", "/nodes/none/drain", {})

    return answers


def neutral(text: str, names: dict[str, str]) -> str:
    return _VARIABLE.sub(
        lambda found: names.setdefault(found.group(), f"<{found.lastgroup} {len(names)}>"),
        text,
    )


async def recorded() -> list[str]:
    async with serving() as api:
        names: dict[str, str] = {}
        return [
            json.dumps([asked, status, neutral(text, names)], ensure_ascii=False)
            for asked, status, text in await story(api)
        ]


async def test_answers_have_the_bytes_that_were_recorded() -> None:
    wanted = RECORDED.read_text().splitlines()
    found = await recorded()
    for line, expected in zip(found, wanted, strict=True):
        assert line == expected, "if this change is meant, record the answers again as the docstring of this file says"


if __name__ == "__main__":
    RECORDED.write_text("\n".join(asyncio.run(recorded())) + "\n")
