"""`GET /metrics`: text that Prometheus reads, with numbers that are right and labels that are bounded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import backstay
from backstay import AsyncBackstay, Backstay, activity, workflow
from backstay.engine.core import counters
from backstay.engine.core.counters import Histogram
from backstay.engine.views import exposition

from .kit import TOKEN, Api, serving

LINE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\\\|\\"|\\n)*",?)*)\})? (\S+)')

RETRIED = {"max_attempts": 3, "backoff_seconds": [60]}


def read(text: str) -> dict[str, float]:
    """Every sample of the text, by its name with labels; each line is checked against the grammar."""
    found: dict[str, float] = {}
    types: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types, "a family is described once"
            types[name] = kind
        elif not line.startswith("#"):
            match = LINE.fullmatch(line)
            assert match is not None, line
            name = match[1]
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            assert (
                name in types or types.get(base) == "histogram" or types.get(name.removesuffix("_total")) == "counter"
            )
            assert line.rpartition(" ")[0] not in found, f"twice: {line}"
            found[line.rpartition(" ")[0]] = float(match[3])
    return found


async def scrape(api: Api, token: str = TOKEN, **headers: str) -> httpx.Response:
    return await api.http.get("/metrics", headers={"Authorization": f"Bearer {token}", **headers})


async def test_a_scrape_tells_what_was_started_closed_tried_and_waits() -> None:
    async with serving() as api:
        await api.register()
        await api.start("done")
        await api.complete(await api.poll(), {"type": "complete_workflow"})
        await api.start("retrying")
        charge = {"type": "schedule_activity", "activity_type": "charge", "retry_policy": RETRIED}
        await api.complete(await api.poll(), charge)
        await api.activity("fail", await api.poll("activity"), failure={"message": "no"})
        await api.start("waiting")
        await api.world.advance(2.8)
        await api.world.advance(0.2)  # stored views follow a commit a moment later
        answer = await scrape(api)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        found = read(answer.text)
        order = 'namespace="default",workflow_type="order"'
        assert found[f"backstay_workflows_started_total{{{order}}}"] == 3
        assert found[f'backstay_workflows_closed_total{{{order},status="completed"}}'] == 1
        assert found['backstay_activities_total{outcome="scheduled"}'] == 1
        assert found['backstay_activities_total{outcome="retried"}'] == 1
        assert found['backstay_activities_total{outcome="completed"}'] == 0
        assert found['backstay_tasks_dispatched_total{kind="workflow"}'] == 2
        assert found['backstay_tasks_dispatched_total{kind="activity"}'] == 1
        assert found['backstay_schedule_to_start_seconds_count{kind="workflow"}'] == 2
        assert found['backstay_task_backlog{namespace="default",queue="q",kind="workflow"}'] == 1
        assert found["backstay_oldest_ready_task_seconds"] == pytest.approx(3, abs=0.01)
        assert found['backstay_workers{namespace="default",status="active"}'] == 1
        assert found["backstay_commits_total"] == found["backstay_commit_duration_seconds_count"] > 5
        assert found["backstay_engine_holder"] == found["backstay_database_up"] == 1
        assert found['backstay_http_requests_total{method="POST",route="/api/workflows",status="201"}'] == 3
        open_runs = [n for name, n in found.items() if name.startswith("backstay_open_runs{")]
        assert sum(open_runs) == 2
        assert found['backstay_open_runs{namespace="default",state="retrying"}'] == 1
        assert found['backstay_open_runs{namespace="default",state="ready"}'] == 1
        assert found["backstay_projector_lag_seconds"] == found["backstay_live_streams"] == 0


async def test_the_time_that_a_task_waited_is_counted_once_it_is_leased() -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        await api.world.advance(7)
        await api.poll()
        found = read((await scrape(api)).text)
        assert found['backstay_schedule_to_start_seconds_sum{kind="workflow"}'] == pytest.approx(7, abs=0.01)
        assert found['backstay_schedule_to_start_seconds_bucket{kind="workflow",le="5.0"}'] == 0
        assert found['backstay_schedule_to_start_seconds_bucket{kind="workflow",le="10.0"}'] == 1


async def test_open_metrics_if_it_is_asked_for() -> None:
    async with serving() as api:
        answer = await scrape(api, Accept="application/openmetrics-text; version=1.0.0")
        assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        assert answer.text.endswith("# EOF\n")
        assert "# TYPE backstay_commits counter\nbackstay_commits_total " in answer.text


async def test_a_scrape_needs_the_role_of_an_operator_unless_it_is_open() -> None:
    async with serving(worker_token="works") as api:
        assert (await api.http.get("/metrics")).status_code == 401
        assert (await scrape(api, "works")).status_code == 403
    async with serving(metrics_open=True) as api:
        assert (await api.http.get("/metrics")).status_code == 200
        assert (await api.http.get("/api/workflows")).status_code == 401


async def test_a_token_of_one_namespace_sees_that_one() -> None:
    async with serving() as api:
        await api.control("POST", "/namespaces", {"name": "other"})
        made = await api.control("POST", "/tokens", {"name": "o", "role": "operator", "namespace": "other"})
        assert made.status_code == 201, made.text
        await api.start("mine")
        text = (await scrape(api, made.json()["token"])).text
        assert 'namespace="default"' not in text
        assert 'namespace="other"' in text


async def test_a_bound_token_reads_nothing_that_is_counted_for_all() -> None:
    async with serving() as api:
        await api.control("POST", "/namespaces", {"name": "team"})
        made = await api.control("POST", "/tokens", {"role": "viewer", "namespace": "team"})
        headers = {"Authorization": f"Bearer {made.json()['token']}"}
        started = {"workflow_type": "order", "workflow_id": "t-1", "task_queue": "q"}
        await api.control("POST", "/workflows", started, headers={"X-Namespace": "team"})
        await api.start("theirs")
        text = (await api.http.get("/metrics", headers=headers)).text
        samples = [line for line in text.splitlines() if not line.startswith("#")]
        assert samples
        assert all('namespace="team"' in line for line in samples), samples


async def test_labels_are_bounded_whatever_callers_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "NAMES", 3)
    monkeypatch.setattr(exposition, "QUEUES", 2)
    async with serving() as api:
        for number in range(6):
            await api.start(f"o-{number}", workflow_type=f"type-{number}", task_queue=f"queue-{number}")
        for path in ("/nowhere", "/nothing"):
            assert (await api.http.get(path)).status_code == 404
        found = read((await scrape(api)).text)
        started = {name: n for name, n in found.items() if name.startswith("backstay_workflows_started_total")}
        assert (len(started), sum(started.values())) == (4, 6)
        assert found['backstay_workflows_started_total{namespace="other",workflow_type="other"}'] == 3
        backlog = {name: n for name, n in found.items() if name.startswith("backstay_task_backlog{")}
        assert (len(backlog), sum(backlog.values())) == (3, 6)
        assert found['backstay_http_requests_total{method="",route="none",status="404"}'] == 2


def test_labels_are_escaped() -> None:
    family = exposition.MetricFamily("x", "gauge", "X.", [exposition.Sample({"queue": 'a"b\\c\nd'}, 1)])
    assert exposition.exposition([family]).splitlines()[-1] == 'x{queue="a\\"b\\\\c\\nd"} 1'


def test_a_histogram_counts_from_below() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 3):
        histogram.observe(value)
    text = exposition.exposition([exposition.one("x", "histogram", "X.", histogram)])
    assert read(text) == {
        'x_bucket{le="0.1"}': 2,
        'x_bucket{le="1.0"}': 3,
        'x_bucket{le="+Inf"}': 4,
        "x_sum": 3.65,
        "x_count": 4,
    }


@activity
def add(a: int, b: int) -> int:
    return a + b


@workflow
def sums() -> int:
    return add(1, 2) + add(3, 4)


def checked(found: dict[str, float]) -> None:
    assert found['backstay_workflows_started_total{namespace="default",workflow_type="sums"}'] == 1
    closed = 'backstay_workflows_closed_total{namespace="default",workflow_type="sums",status="completed"}'
    assert found[closed] == 1
    assert found['backstay_activities_total{outcome="completed"}'] == 2
    assert found['backstay_tasks_dispatched_total{kind="activity"}'] == 2


async def test_an_embedded_app_gives_the_same_text() -> None:
    async with AsyncBackstay(":memory:", [sums, add]) as app:
        assert await app.execute(sums, "s-1") == 10
        checked(read(await backstay.prometheus(app)))
    with pytest.raises(RuntimeError, match="not open"):
        await backstay.prometheus(app)


@pytest.fixture
def shop() -> Iterator[Any]:
    with Backstay(":memory:", [sums, add]) as app:
        yield app


def test_an_app_without_await_gives_the_same_text(shop: Backstay) -> None:
    assert shop.execute(sums, "s-1") == 10
    checked(read(backstay.prometheus(shop)))
    assert backstay.prometheus(shop, open_metrics=True).endswith("# EOF\n")
