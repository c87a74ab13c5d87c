"""The house itself: health, readiness, discovery."""

from __future__ import annotations

from typing import Any

from backstay.protocol.history import iso
from backstay.server.auth import EVERY
from backstay.server.call import Call
from backstay.server.discovery import cluster_info
from backstay.server.routing import Answer, Route
from backstay.server.server import Server


async def health(server: Server, call: Call) -> Answer:
    """Whether this process serves. It does while its database can commit."""
    down = server.engine.down
    checks = {"database": "ok" if down is None else "unavailable"}
    body: dict[str, Any] = {"status": "serving", "timestamp": iso(server.now), "checks": checks}
    return Answer(body) if down is None else Answer(body | {"status": "degraded"}, 503)


async def ready(server: Server, call: Call) -> Answer:
    """Whether to send traffic here: a server that drains, or waits for the engine lock, wants none."""
    checks = {
        "database": "ok" if server.engine.down is None else "unavailable",
        "engine": "ok" if server.engine.holder else "held_by_another_process",
        "draining": "yes" if server.draining else "no",
    }
    good = server.engine.down is None and server.engine.holder and not server.draining
    body: dict[str, Any] = {"status": "ready" if good else "not_ready", "timestamp": iso(server.now), "checks": checks}
    return Answer(body, 200 if good else 503)


ROUTES = [
    Route("GET", "/api/health", health, "open", EVERY),
    Route("GET", "/api/ready", ready, "open", EVERY),
    Route("GET", "/api/cluster/info", cluster_info, "discovery", EVERY, any_namespace=True),
]
