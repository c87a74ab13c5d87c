"""A trace over HTTP: the caller's client, a server, and a worker in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from backstay import AsyncClient

from ..sdk.kit import eventually
from ..sdk.test_tracing import spans, traces
from ..server.kit import Api, serving
from .kit import TOKEN, House

__all__ = ["spans"]

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

WORKER = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from backstay import Worker, activity, child, workflow

class Lines(SpanExporter):
    def export(self, spans):
        for span in spans:
            print(span.to_json(indent=None), flush=True)
        return SpanExportResult.SUCCESS

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(Lines()))
trace.set_tracer_provider(provider)

@activity
def add(a: int, b: int) -> int:
    return a + b

@workflow
def small(number: int) -> int:
    return add(number, 1)

@workflow
def order(number: int) -> int:
    return add(child(small, number), 1)

with Worker(sys.argv[1], [order, small, add], token=sys.argv[2], drain=1.0):
    sys.stdin.read()
"""


async def test_the_trace_of_a_caller_goes_on_in_a_worker_elsewhere(spans: InMemorySpanExporter, tmp_path: Path) -> None:
    code = tmp_path / "worker.py"
    code.write_text(WORKER)
    async with House() as house, AsyncClient(house.url, token=TOKEN) as client:
        worker = subprocess.Popen(
            [sys.executable, str(code), house.url, TOKEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            with trace.get_tracer("test").start_as_current_span("the request") as request:
                assert await client.execute("order", "o-1", 1) == 3
                asked = request.get_span_context()
            assert len(house.server.worker_links._links) == 1
        finally:
            assert worker.stdin is not None
            worker.stdin.close()
            await eventually(lambda: worker.poll() is not None)
            assert worker.stdout is not None
            lines = [json.loads(line) for line in worker.stdout.read().splitlines()]
            worker.stdout.close()
        assert traces(spans) == {asked.trace_id}, "and the caller made no span of its own beside the request"
        assert {line["context"]["trace_id"] for line in lines} == {f"0x{asked.trace_id:032x}"}
        assert {line["parent_id"] for line in lines} == {f"0x{asked.span_id:016x}"}
        found = [line["name"] for line in lines]
        assert found.count("activity add") == 2
        assert {"workflow order", "workflow small"} <= set(found)


@pytest.mark.needs_links("a poll that does not wait finds what the node that it reached has")
async def test_the_header_of_a_caller_reaches_history_and_every_worker() -> None:
    async with serving() as api:
        await api.register()
        found = await started(api, "o-1", CALLER)
        assert found["traceparent"] == CALLER
        task = await api.poll()
        assert task["traceparent"] == CALLER
        await api.complete(task, {"type": "schedule_activity", "activity_type": "charge"})
        assert (await api.poll("activity"))["traceparent"] == CALLER


@pytest.mark.needs_links("a poll that does not wait finds what the node that it reached has")
@pytest.mark.parametrize("wrong", [None, "", "nonsense", CALLER.upper(), "00-" + "0" * 32 + CALLER[35:]])
async def test_a_header_that_is_no_trace_is_ignored(wrong: str | None) -> None:
    async with serving() as api:
        await api.register()
        assert "traceparent" not in await started(api, "o-1", wrong)
        assert "traceparent" not in await api.poll()


async def started(api: Api, workflow_id: str, traceparent: str | None) -> dict[str, Any]:
    headers = {} if traceparent is None else {"traceparent": traceparent}
    body = {"workflow_type": "order", "workflow_id": workflow_id, "task_queue": "q"}
    answer = await api.control("POST", "/workflows", body, headers=headers)
    assert answer.status_code == 201, answer.text
    (event,) = [event for event in await api.history(workflow_id) if event["event_type"] == "WorkflowStarted"]
    return event["payload"]
