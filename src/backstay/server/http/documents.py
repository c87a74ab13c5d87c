"""OpenAPI of every route, made from the structs of requests and answers, and AsyncAPI of the streams."""

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
from backstay.server.http.router import Route

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
_REHEARSED = {
    "type": "object",
    "required": ["dry_run"],
    "properties": {"dry_run": {"const": True}},
    "description": "With `dry_run=1`: what would be answered and written.",
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
    bodies = [route.body for route in routes if route.body is not None]
    types = list(dict.fromkeys([*bodies, *(kind for route in routes for kind in _answer_types(route))]))
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    by_type: dict[Any, Any] = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operation = _operation(route, by_type.get(route.body), [by_type[kind] for kind in _answer_types(route)])
        paths.setdefault(route.path, {})[route.method.lower()] = operation
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


def _answer_types(route: Route) -> tuple[Any, ...]:
    """The types of an answer. On our own routes it may be something else."""
    return () if route.answers != "application/json" or route.plane == "own" else route.answer_types


def _operation(route: Route, body: Any, answers: list[Any]) -> dict[str, Any]:
    said = inspect.getdoc(route.handler) or route.handler.__name__.replace("_", " ")
    operation: dict[str, Any] = {
        "operationId": "_".join([route.method.lower(), *_WORDS.findall(route.path.removeprefix("/api/"))]),
        "summary": said.splitlines()[0],
        "tags": [route.plane],
        "parameters": [*_path_parameters(route.path), *_header(route.plane)],
        "responses": {
            "2XX": {
                "description": "done",
                "content": {route.answers: {"schema": _done(route, answers)}},
            },
            "4XX": _refusal("refused"),
            "503": {
                "description": "not now: the database cannot be reached, or this server is stopping",
                "content": {"application/json": {"schema": {"type": "object"}}},
            },
        },
    }
    if route.plane in ("control", "discovery") and route.method == "POST":
        operation["responses"]["504"] = _refusal("no worker or node answered in time")
    if route.plane == "open":
        operation["security"] = []
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return operation


def _done(route: Route, answers: list[Any]) -> dict[str, Any]:
    """The schema of a successful answer; on our own routes it may be a list or a plain value."""
    if route.changes and answers:
        answers = [*answers, _REHEARSED]
    if answers:
        return {"anyOf": answers} if len(answers) > 1 else answers[0]
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
