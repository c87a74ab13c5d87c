"""One trace follows a workflow: over tasks, activities, children, continued runs and restarts, and never over a replay."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from backstay import (
    AsyncBackstay,
    Backstay,
    Signal,
    activity,
    child,
    continue_as_new,
    query,
    wait,
    workflow,
)
from backstay.kernel.features.start import WorkflowStarted, valid_traceparent
from backstay.kernel.values import Routing
from backstay.sdk import tracing

seen: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """A provider for this test only: OpenTelemetry has one for the whole process, and would keep it."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def names(exporter: InMemorySpanExporter) -> list[str]:
    return [span.name for span in exporter.get_finished_spans()]


def traces(exporter: InMemorySpanExporter) -> set[int]:
    return {span.context.trace_id for span in exporter.get_finished_spans() if span.context is not None}


def of(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def current() -> str:
    found = trace.get_current_span().get_span_context()
    return f"{found.trace_id:032x}-{found.span_id:016x}"


@activity
def blocking(number: int) -> int:
    seen.append(current())
    return number + 1


@activity
async def awaiting(number: int) -> int:
    seen.append(current())
    return number + 1


@activity(local=True)
def beside(number: int) -> int:
    seen.append(current())
    return number + 1


@activity(retries=1, backoff=0)
def failing() -> None:
    raise ValueError("no")


@workflow
def small(number: int) -> int:
    return blocking(number)


@workflow
async def order(number: int) -> int:
    number = await awaiting(number)
    number = beside(number)
    number = child(small, number)
    if number < 6:
        continue_as_new(order, number)
    return number


@workflow
def sad() -> str:
    try:
        failing()
    except ValueError:
        return "sad"
    return "happy"


async def test_one_trace_follows_a_run_over_activities_children_and_continued_runs(spans: InMemorySpanExporter) -> None:
    async with AsyncBackstay(":memory:", [order, small, blocking, awaiting, beside]) as app:
        tracer = trace.get_tracer("test")
        with tracer.start_as_current_span("the request") as request:
            assert await app.execute(order, "o-1", 0) == 6
            asked = request.get_span_context()
        assert traces(spans) == {asked.trace_id}
        found = names(spans)
        assert found.count("activity awaiting") == 2, "one in each run"
        assert found.count("activity beside") == 2
        assert found.count("activity blocking") == 2
        assert found.count("workflow small") == 4, "each of both has two tasks"
        assert {"workflow order", "the request"} <= set(found)
        for span in spans.get_finished_spans():
            if span.name != "the request":
                assert span.parent is not None
                assert span.parent.span_id == asked.span_id
        # Inside an activity its own span is the current one.
        own = [
            f"{span.context.trace_id:032x}-{span.context.span_id:016x}"
            for name in ("activity awaiting", "activity beside", "activity blocking")
            for span in of(spans, name)
            if span.context is not None
        ]
        assert sorted(seen) == sorted(own)
        (awaited, _) = of(spans, "activity awaiting")
        assert awaited.attributes is not None
        assert awaited.attributes["backstay.workflow_id"] == "o-1"
        assert awaited.attributes["backstay.attempt"] == 1
        assert (
            dict(awaited.attributes).items()
            >= {
                "messaging.system": "backstay",
                "messaging.operation.name": "activity",
                "messaging.operation.type": "process",
                "messaging.destination.name": "default",
                "messaging.message.conversation_id": "o-1",
            }.items()
        )


async def test_a_failed_attempt_is_an_error_in_the_trace(spans: InMemorySpanExporter) -> None:
    async with AsyncBackstay(":memory:", [sad, failing]) as app:
        assert await app.execute(sad, "s-1") == "sad"
        tried = of(spans, "activity failing")
        assert [span.attributes and span.attributes["backstay.attempt"] for span in tried] == [1, 2]
        assert all(span.status.status_code is trace.StatusCode.ERROR for span in tried)
        for span in tried:
            assert span.attributes is not None
            assert span.attributes["error.type"] == "ValueError"
            (raised,) = span.events
            assert raised.name == "exception"
            assert raised.attributes is not None
            assert raised.attributes["exception.message"] == "no"
            assert "raise ValueError" in str(raised.attributes["exception.stacktrace"])
        (root,) = of(spans, "start sad")
        assert root.parent is None, "nobody had a span, so the start made one"
        assert root.attributes is not None
        assert root.attributes["messaging.operation.type"] == "send"
        assert root.attributes["backstay.workflow_id"] == "s-1"
        assert len(traces(spans)) == 1


go = Signal[str]("go")


@workflow
class Patient:
    def __init__(self) -> None:
        self.count = 0

    def handle(self) -> int:
        self.count = blocking(self.count)
        wait(go)
        return blocking(self.count)

    @query
    def counted(self) -> int:
        return self.count


def test_a_replay_makes_no_spans(spans: InMemorySpanExporter, tmp_path: Any) -> None:
    """Another process replays the run for its next task; its trace goes on, and nothing is in it twice."""
    path = tmp_path / "t.db"
    with Backstay(path, [Patient, blocking]) as app:
        with trace.get_tracer("test").start_as_current_span("the request") as request:
            app.start(Patient, "p-1")
            asked = request.get_span_context()
        wait_until(lambda: len(of(spans, "activity blocking")) == 1)
    before = names(spans)
    with Backstay(path, [Patient, blocking]) as app:
        assert app.handle(Patient, "p-1").query(Patient.counted) == 1
        assert app.replay().blocked == []
        assert names(spans) == before, "a query and a replay are no part of the trace"
        app.handle(Patient, "p-1").signal(go, "now")
        assert app.handle(Patient, "p-1").result() == 2
    after = names(spans)[len(before) :]
    assert after.count("activity blocking") == 1, "the first activity was replayed, and ran once"
    assert traces(spans) == {asked.trace_id}


def wait_until(holds: Any) -> None:
    import time

    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def test_without_a_provider_nothing_is_recorded() -> None:
    async with AsyncBackstay(":memory:", [small, blocking]) as app:
        assert await app.execute(small, "s-1", 1) == 2
        events = [entry.event for entry in await app.handle(small, "s-1").history()]
        started = [event for event in events if isinstance(event, WorkflowStarted)]
        assert [event.traceparent for event in started] == [None]
        assert seen == [f"{0:032x}-{0:016x}"]


def test_a_process_that_did_not_import_it_is_not_made_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    assert tracing.outgoing("order", "o-1", Routing()) is None
    assert "opentelemetry.trace" not in sys.modules


def test_a_wrong_traceparent_is_ignored() -> None:
    right = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert valid_traceparent(right) == right
    for wrong in (
        "",
        right.upper(),
        right + "-more",
        "01" + right[2:],
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
        None,
    ):
        assert valid_traceparent(wrong) is None
