"""`GET /metrics`: the metrics of this server for Prometheus. A token that is bound to a namespace sees the runs, queues
and workers of that one, and nothing that is counted for all together."""

from __future__ import annotations

from collections import Counter
from importlib.metadata import version

from backstay.engine.cluster.node_metrics import node_families
from backstay.engine.views.exposition import (
    OPEN_METRICS,
    PLAIN,
    MetricFamily,
    Sample,
    engine_families,
    exposition,
    one,
    open_states,
)
from backstay.server.access.auth import OPERATOR
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.router import Route
from backstay.server.server import Server

NAMESPACES = 100  # whose open runs and workers are counted one by one


async def scrape(server: Server, request: HttpRequest) -> HttpResponse:
    """Counters and gauges in the text format of Prometheus, or OpenMetrics if the caller accepts it."""
    wanted = "application/openmetrics-text" in request.headers.get("accept", "")
    namespaces = (
        sorted(namespace.name for namespace in server.namespaces.all())[:NAMESPACES]
        if request.bound is None
        else [request.bound]
    )
    states = await open_states(server.node.open_runs, namespaces)
    families = [
        *engine_families(server.engine, states, server.node.projector.lag),
        *await node_families(server.node),
        *_of_server(server, namespaces),
        await _causes(server, namespaces),
    ]
    if request.bound is not None:
        families = [found for family in families if (found := _only(family, request.bound)).samples]
    text = exposition(families, wanted)
    return HttpResponse({}, raw=text.encode("utf-8", "replace"), content_type=OPEN_METRICS if wanted else PLAIN)


def _only(family: MetricFamily, namespace: str) -> MetricFamily:
    """The samples of this namespace."""
    kept = [sample for sample in family.samples if sample.labels.get("namespace") == namespace]
    return family._replace(samples=kept)


async def _causes(server: Server, namespaces: list[str]) -> MetricFamily:
    """Every cause with its number, also when the database cannot be read."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for namespace in namespaces:
        for cause in (await server.control.causes.read(namespace)).causes:
            counts[namespace, cause.name, cause.severity] += cause.count
    samples = [
        Sample({"namespace": namespace, "cause": name, "severity": severity}, count)
        for (namespace, name, severity), count in counts.items()
    ]
    return MetricFamily("backstay_causes", "gauge", "What needs attention, by cause; see GET /api/causes.", samples)


def _of_server(server: Server, namespaces: list[str]) -> list[MetricFamily]:
    workers: list[Sample] = []
    for namespace in namespaces:
        counts = Counter("stale" if server.workers.stale(w) else "active" for w in server.workers.of(namespace))
        workers += [Sample({"namespace": namespace, "status": status}, n) for status, n in counts.items()]
    requests = [
        Sample({"method": method, "route": route, "status": str(status)}, n)
        for (method, route, status), n in server.requests.items()
    ]
    return [
        MetricFamily("backstay_workers", "gauge", "Registered workers.", workers),
        MetricFamily("backstay_http_requests", "counter", "Requests that were answered.", requests),
        one("backstay_live_streams", "gauge", "Live streams that are open.", len(server.control.feed)),
        one("backstay_parked_polls", "gauge", "Polls that wait for a task.", len(server.parked)),
        one(
            "backstay_engine_held_seconds",
            "gauge",
            "The longest time in the last minute that something held the engine's thread.",
            server.loop_watch.longest,
        ),
        MetricFamily("backstay_build_info", "gauge", "The release.", [Sample({"version": version("backstay")}, 1)]),
    ]


ROUTES = [Route("GET", "/metrics", scrape, "discovery", OPERATOR, any_namespace=True, answers=PLAIN, payload_free=True)]
