"""The registry of search attributes: names and types."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta, Struct

from backstay.server.access.auth import OPERATOR
from backstay.server.http.errors import HttpError, invalid
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.router import Route
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


class AttributesAnswer(Struct, frozen=True, kw_only=True):
    namespace: str
    system_attributes: Annotated[
        dict[str, str], Meta(description="The types of attributes that every run has, by name.")
    ]
    custom_attributes: Annotated[dict[str, str], Meta(description="The types of those of this namespace, by name.")]


class CreatedAttributeAnswer(Struct, frozen=True, kw_only=True):
    name: str
    type: str
    outcome: Literal["created"] = "created"


class RemovedAttributeAnswer(Struct, frozen=True, kw_only=True):
    name: str
    outcome: Literal["deleted"] = "deleted"


async def listing(server: Server, request: HttpRequest) -> AttributesAnswer:
    return AttributesAnswer(
        namespace=request.namespace,
        system_attributes=SYSTEM,
        custom_attributes=dict(server.control.attributes.of(request.namespace)),
    )


async def create(server: Server, request: HttpRequest) -> HttpResponse:
    body = request.decode(CreateAttributeBody)
    if not _NAME.fullmatch(body.name):
        raise invalid("name", "a search attribute is a letter, then up to 63 letters, digits or underscores")
    if body.name in SYSTEM:
        raise HttpError(409, "name_reserved", f"{body.name!r} is an attribute of the system", field="name")
    if server.control.attributes.get(request.namespace, body.name) is not None:
        raise HttpError(409, "attribute_already_exists", f"there is an attribute {body.name!r} already", field="name")
    if len(list(server.control.attributes.of(request.namespace))) >= LIMIT:
        raise invalid("name", f"a namespace has at most {LIMIT} attributes", "search_attribute_limit_reached")
    await server.control.attributes.put(request.namespace, body.name, body.type)
    return HttpResponse(CreatedAttributeAnswer(name=body.name, type=body.type), 201)


async def remove(server: Server, request: HttpRequest) -> RemovedAttributeAnswer:
    name = request.params["name"]
    if server.control.attributes.get(request.namespace, name) is None:
        raise HttpError(404, "attribute_not_found", f"there is no attribute {name!r}")
    await server.control.attributes.remove(request.namespace, name)
    return RemovedAttributeAnswer(name=name)


ROUTES = [
    Route("GET", "/api/search-attributes", listing, "control", OPERATOR),
    Route(
        "POST",
        "/api/search-attributes",
        create,
        "control",
        OPERATOR,
        body=CreateAttributeBody,
        told=CreatedAttributeAnswer,
    ),
    Route("DELETE", "/api/search-attributes/{name}", remove, "control", OPERATOR),
]
