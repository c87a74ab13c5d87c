"""Routes that explain a run: why it is where it is, and with `event` why that event was recorded."""

from __future__ import annotations

import msgspec

from backstay.kernel.views.why import Why
from backstay.protocol.history import iso
from backstay.protocol.requests import ExplainWorkflow
from backstay.protocol.tasks import optional_iso
from backstay.server.answers.runs import WhyAnswer
from backstay.server.auth import OPERATOR
from backstay.server.http_messages import HttpRequest
from backstay.server.router import Route
from backstay.server.server import Server

LAST = 2**53


async def why(server: Server, request: HttpRequest) -> WhyAnswer:
    asked = "event" in request.query
    found = await server.api.call(
        ExplainWorkflow(
            workflow_id=request.params["workflow_id"],
            namespace=request.namespace,
            run_id=request.params.get("run_id"),
            event=request.integer("event", 1, 1, LAST) if asked else None,
        )
    )
    return shown(found, request.namespace)


def shown(found: Why, namespace: str) -> WhyAnswer:
    """The answer as JSON: times as text, and every field present."""
    source = found.resume_source
    return {
        "namespace": namespace,
        "workflow_id": found.workflow_id,
        "run_id": found.run_id,
        "state": found.state,
        "attention": found.attention,
        "verb": found.verb,
        "tone": found.tone,
        "sentence": found.sentence,
        "since": iso(found.since),
        "until": optional_iso(found.until),
        "by_itself": found.by_itself,
        "action": None if found.action is None else msgspec.to_builtins(found.action),
        "resume_source": None
        if source is None
        else {"kind": source.kind, "id": source.id, "deadline": optional_iso(source.deadline)},
        "chain": [
            {
                "sequence": cause.sequence,
                "type": cause.type,
                "recorded_at": iso(cause.at),
                "about": cause.about,
                "because": cause.because,
                "outside": cause.outside,
            }
            for cause in found.chain
        ],
    }


ROUTES = [
    Route("GET", f"{place}/why", why, "control", OPERATOR)
    for place in ("/api/workflows/{workflow_id}", "/api/workflows/{workflow_id}/runs/{run_id}")
]
