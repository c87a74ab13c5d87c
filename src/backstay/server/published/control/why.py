"""Routes that explain a run: why it is where it is, and with `event` why that event was recorded."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from backstay.kernel.views.why import Why
from backstay.kernel.views.why_open import HelpfulAction
from backstay.protocol.history import iso
from backstay.protocol.requests import ExplainWorkflow
from backstay.protocol.tasks import optional_iso
from backstay.server.access.auth import OPERATOR
from backstay.server.http.messages import HttpRequest
from backstay.server.http.router import Route
from backstay.server.server import Server

LAST = 2**53


class WhyResumeSource(Struct, frozen=True, kw_only=True):
    kind: str | None
    id: str | None
    deadline: str | None


class WhyCause(Struct, frozen=True, kw_only=True):
    sequence: int
    type: str
    recorded_at: str
    about: str
    because: int | None
    outside: str | None


class WhyAnswer(Struct, frozen=True, kw_only=True):
    namespace: str
    workflow_id: str
    run_id: str
    state: str
    attention: str | None
    verb: str
    tone: Literal["info", "good", "warning", "danger", "paused"]
    sentence: str
    since: str
    until: str | None
    by_itself: Annotated[str | None, Meta(description="What goes on without anybody.")]
    action: HelpfulAction | None
    resume_source: WhyResumeSource | None
    chain: list[WhyCause]


async def why(server: Server, request: HttpRequest) -> WhyAnswer:
    asked = "event" in request.query
    explained = await server.api.call(
        ExplainWorkflow(
            workflow_id=request.params["workflow_id"],
            namespace=request.namespace,
            run_id=request.params.get("run_id"),
            event=request.integer("event", 1, 1, LAST) if asked else None,
        )
    )
    return shown(explained, request.namespace)


def shown(found: Why, namespace: str) -> WhyAnswer:
    """The answer as JSON: times as text, and every field present."""
    source = found.resume_source
    return WhyAnswer(
        namespace=namespace,
        workflow_id=found.workflow_id,
        run_id=found.run_id,
        state=found.state,
        attention=found.attention,
        verb=found.verb,
        tone=found.tone,
        sentence=found.sentence,
        since=iso(found.since),
        until=optional_iso(found.until),
        by_itself=found.by_itself,
        action=found.action,
        resume_source=None
        if source is None
        else WhyResumeSource(kind=source.kind, id=source.id, deadline=optional_iso(source.deadline)),
        chain=[
            WhyCause(
                sequence=cause.sequence,
                type=cause.type,
                recorded_at=iso(cause.at),
                about=cause.about,
                because=cause.because,
                outside=cause.outside,
            )
            for cause in found.chain
        ],
    )


ROUTES = [
    Route("GET", f"{place}/why", why, "control", OPERATOR)
    for place in ("/api/workflows/{workflow_id}", "/api/workflows/{workflow_id}/runs/{run_id}")
]
