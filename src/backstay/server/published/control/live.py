"""The route of the live feed: server-sent events that announce changes, after commits."""

from __future__ import annotations

from difflib import get_close_matches

from backstay.server.access.auth import OPERATOR
from backstay.server.http.errors import HttpError, invalid
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.router import Route
from backstay.server.operators.feed_streams import LiveStream
from backstay.server.operators.feed_topics import TopicName
from backstay.server.server import Server

WHOLE = ("runs", "queues", "overview", "system")
ONE = ("run", "bulk")  # with an id
MOST = 50  # topics of a stream


async def live(server: Server, request: HttpRequest) -> HttpResponse:
    """Changes from now on: a stream of server-sent events for one or several topics (topic=a&topic=b)."""
    names = topics_of(request)
    server.control.feed.admit(request.address)
    for name in names:
        if name.kind == "run" and await server.api.stored.find(request.namespace, name.id) is None:
            said = f"there is no workflow {name.id!r} in namespace {request.namespace!r}"
            raise HttpError(404, "instance_not_found", said, workflow_id=name.id, field="topic")
        if name.kind == "bulk" and server.control.bulks.get(request.namespace, name.id) is None:
            raise HttpError(404, "bulk_not_found", f"there is no bulk operation {name.id!r}", field="topic")
    server.control.feed.admit(request.address)  # again: the database may have taken a while
    after = request.query.get("after") or request.headers.get("last-event-id")

    def valid() -> bool:
        if server.namespaces.get(request.namespace) is None:
            return False
        if request.caller.method == "signature":
            return True  # of this request, for ever
        try:
            return server.access.authenticator.caller(request.headers) == request.caller
        except HttpError:
            return False

    stream = LiveStream(server.control.feed, names, request.address, after, valid)
    return HttpResponse({}, content_type="text/event-stream", parts=stream.parts())


def topics_of(request: HttpRequest) -> list[TopicName]:
    said = [topic for topic in request.values("topic") if topic]
    if not said:
        raise invalid("topic", f"name at least one topic: {_known()}", "missing_topic")
    if len(said) > MOST:
        raise invalid("topic", f"a stream has at most {MOST} topics, not {len(said)}", "too_many_topics")
    return list(dict.fromkeys(_topic(topic, request.namespace, request.bound) for topic in said))


def _topic(said: str, namespace: str, bound: str | None) -> TopicName:
    """`bound`: the only namespace that the caller may read. It hears of the system what moves there."""
    kind, colon, id = said.partition(":")
    if said in WHOLE:
        return TopicName(said, "" if said == "system" and bound is None else namespace)
    if kind in ONE and id:
        return TopicName(kind, namespace, id)
    near = get_close_matches(kind, (*WHOLE, *ONE), 1, cutoff=0.5)
    if kind in ONE:
        meant = f"; write {kind}:ID"
    elif near:
        meant = f"; did you mean {near[0] + ':' + id if near[0] in ONE and colon else near[0]!r}?"
    else:
        meant = ""
    raise invalid("topic", f"{said[:100]!r} is no topic{meant}; there are {_known()}", "unknown_topic")


def _known() -> str:
    return ", ".join((*WHOLE, "run:WORKFLOW_ID", "bulk:ID"))


ROUTES = [
    Route("GET", "/api/live", live, "discovery", OPERATOR, answers="text/event-stream", payload_free=True),
]
