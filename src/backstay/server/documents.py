"""OpenAPI of every route, made from the structs that decode requests, and AsyncAPI of the streams."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from functools import cache
from importlib import resources
from importlib.metadata import version
from typing import Any

import msgspec

from backstay.protocol.native import client as calls
from backstay.protocol.versions import CONTROL_PLANE, CONTROL_PLANE_HEADER, VERSION, VERSION_HEADER
from backstay.server.router import Route

_PROBLEM = {
    "type": "object",
    "required": ["message", "reason"],
    "properties": {
        "message": {"type": "string"},
        "error": {"type": "string"},
        "reason": {"type": "string", "description": "Stable; decide by this."},
        "field": {"type": "string"},
        "validation_errors": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}},
    },
}
_HEADERS = {
    "worker": (VERSION_HEADER, VERSION),
    "control": (CONTROL_PLANE_HEADER, CONTROL_PLANE),
    "own": (calls.HEADER, str(calls.VERSION)),
}


_WORDS = re.compile(r"[a-z_-]+")


@cache
def stream_document() -> bytes:
    return resources.files("backstay.protocol").joinpath("worker-protocol-stream.json").read_bytes()


def openapi(routes: Iterable[Route]) -> dict[str, Any]:
    routes = list(routes)
    bodies = list(dict.fromkeys(route.body for route in routes if route.body is not None))
    schemas, components = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    by_body: dict[Any, Any] = dict(zip(bodies, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_body.get(route.body))
    return {
        "openapi": "3.1.0",
        "info": {"title": "Backstay", "version": version("backstay")},
        "paths": paths,
        "components": {
            "schemas": {**msgspec.json.decode(msgspec.json.encode(components)), "Problem": _PROBLEM},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(route: Route, body: Any) -> dict[str, Any]:
    said = inspect.getdoc(route.handler) or route.handler.__name__.replace("_", " ")
    operation: dict[str, Any] = {
        "operationId": "_".join([route.method.lower(), *_WORDS.findall(route.path.removeprefix("/api/"))]),
        "summary": said.splitlines()[0],
        "tags": [route.plane],
        "parameters": [*_path_parameters(route.path), *_header(route.plane)],
        "responses": {
            "2XX": {"description": "done", "content": {route.answers: {"schema": _done(route)}}},
            "4XX": _refusal("refused"),
            "503": {
                "description": "not now: the database is away, or this server stops",
                "content": {"application/json": {"schema": {"type": "object"}}},
            },
        },
    }
    if route.plane in ("control", "discovery") and route.method == "POST":
        operation["responses"]["504"] = _refusal("nobody answered in time")
    if route.plane == "open":
        operation["security"] = []
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return operation


def _done(route: Route) -> dict[str, Any]:
    """The schema of a successful answer; on our own routes it may be a list or a plain value."""
    if route.answers != "application/json":
        return {"type": "string"}
    return {} if route.plane == "own" else {"type": "object"}


def _refusal(description: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }


def _path_parameters(path: str) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _header(plane: str) -> list[dict[str, Any]]:
    if plane not in _HEADERS:
        return []
    name, value = _HEADERS[plane]
    namespace = {"name": "X-Namespace", "in": "header", "required": False, "schema": {"type": "string"}}
    return [
        {"name": name, "in": "header", "required": True, "schema": {"type": "string", "examples": [value]}},
        namespace,
    ]
