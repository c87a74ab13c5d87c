"""The registry of search attributes: which names exist, and of which type."""

from __future__ import annotations

import re
from typing import Any, Literal

from msgspec import Struct

from backstay.server.auth import OPERATOR
from backstay.server.http_errors import HttpError, invalid
from backstay.server.http_messages import HttpRequest, HttpResponse
from backstay.server.router import Route
from backstay.server.server import Server

SYSTEM = {
    "WorkflowType": "keyword",
    "WorkflowId": "keyword",
    "RunId": "keyword",
    "Status": "keyword",
    "StartTime": "datetime",
    "CloseTime": "datetime",
    "TaskQueue": "keyword",
    "BuildId": "keyword",
}
LIMIT = 100
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,63}")


class CreateAttributeBody(Struct, frozen=True, kw_only=True):
    name: str
    type: Literal["keyword", "text", "int", "double", "bool", "datetime", "keyword_list"]


async def listing(server: Server, request: HttpRequest) -> dict[str, Any]:
    return {
        "namespace": request.namespace,
        "system_attributes": SYSTEM,
        "custom_attributes": dict(server.attributes.of(request.namespace)),
    }


async def create(server: Server, request: HttpRequest) -> HttpResponse:
    body = request.decode(CreateAttributeBody)
    if not _NAME.fullmatch(body.name):
        raise invalid("name", "a search attribute is a letter, then up to 63 letters, digits or underscores")
    if body.name in SYSTEM:
        raise HttpError(409, "name_reserved", f"{body.name!r} is an attribute of the system", field="name")
    if server.attributes.get(request.namespace, body.name) is not None:
        raise HttpError(409, "attribute_already_exists", f"there is an attribute {body.name!r} already", field="name")
    if len(list(server.attributes.of(request.namespace))) >= LIMIT:
        raise invalid("name", f"a namespace has at most {LIMIT} attributes", "search_attribute_limit_reached")
    await server.attributes.put(request.namespace, body.name, body.type)
    return HttpResponse({"name": body.name, "type": body.type, "outcome": "created"}, 201)


async def remove(server: Server, request: HttpRequest) -> dict[str, Any]:
    name = request.params["name"]
    if server.attributes.get(request.namespace, name) is None:
        raise HttpError(404, "attribute_not_found", f"there is no attribute {name!r}")
    await server.attributes.remove(request.namespace, name)
    return {"name": name, "outcome": "deleted"}


ROUTES = [
    Route("GET", "/api/search-attributes", listing, "control", OPERATOR),
    Route("POST", "/api/search-attributes", create, "control", OPERATOR, body=CreateAttributeBody),
    Route("DELETE", "/api/search-attributes/{name}", remove, "control", OPERATOR),
]
