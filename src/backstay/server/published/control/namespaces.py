"""Namespaces as administrators see them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from backstay.protocol import requests as ask
from backstay.protocol.history import iso
from backstay.protocol.schedules import ListSchedules
from backstay.server.access.auth import ADMIN, OPERATOR, require_namespace
from backstay.server.http.errors import HttpError
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.router import Route
from backstay.server.registries.namespaces import Namespace, checked_name
from backstay.server.server import Server

Days = Annotated[int, Meta(ge=1, le=365)]
Description = Annotated[str, Meta(max_length=1000)]


class CreateNamespaceBody(Struct, frozen=True, kw_only=True):
    name: str
    description: Description | None = None
    retention_days: Days = 30


class UpdateNamespaceBody(Struct, frozen=True, kw_only=True):
    description: Description | UnsetType | None = UNSET
    retention_days: Days | UnsetType = UNSET


class NamespaceAnswer(Struct, frozen=True, kw_only=True):
    name: str
    description: str | None
    retention_days: Annotated[int, Meta(description="Days that closed runs are kept.")]
    status: str
    external_payload_storage: None
    created_at: str
    updated_at: str


class NamespacesAnswer(Struct, frozen=True, kw_only=True):
    namespaces: Annotated[list[NamespaceAnswer], Meta(description="Those that the caller may use.")]


async def listing(server: Server, request: HttpRequest) -> NamespacesAnswer:
    found = [namespace for namespace in server.namespaces.all() if request.bound in (None, namespace.name)]
    return NamespacesAnswer(namespaces=[_shown(namespace) for namespace in found])


async def create(server: Server, request: HttpRequest) -> HttpResponse:
    body = request.decode(CreateNamespaceBody)
    name = checked_name(body.name)
    require_namespace(name, request.bound)
    if server.namespaces.get(name) is not None:
        raise HttpError(409, "namespace_already_exists", f"there is a namespace {name!r} already", namespace=name)
    namespace = Namespace(
        name=name,
        description=body.description,
        retention_days=body.retention_days,
        created_at=server.now,
        updated_at=server.now,
    )
    await server.namespaces.put(namespace)
    return HttpResponse(_shown(namespace), 201)


async def describe(server: Server, request: HttpRequest) -> NamespaceAnswer:
    return _shown(_named(server, request))


async def update(server: Server, request: HttpRequest) -> NamespaceAnswer:
    body = request.decode(UpdateNamespaceBody)
    before = _named(server, request)
    after = replace(
        before,
        description=before.description if body.description is UNSET else body.description,
        retention_days=before.retention_days if body.retention_days is UNSET else body.retention_days,
        updated_at=server.now,
    )
    await server.namespaces.put(after)
    return _shown(after)


class RemovedNamespaceAnswer(Struct, frozen=True, kw_only=True):
    name: str
    status: Literal["deleted"] = "deleted"
    deleted: Annotated[dict[str, int], Meta(description="What was deleted with it; a namespace is empty before.")]


async def remove(server: Server, request: HttpRequest) -> RemovedNamespaceAnswer:
    namespace = _named(server, request)
    if namespace.name == server.namespaces.default:
        raise HttpError(
            409, "namespace_is_default", "the default namespace cannot be deleted", namespace=namespace.name
        )
    if await server.api.call(ask.ListWorkflows(namespace=namespace.name, limit=1)):
        raise HttpError(
            409,
            "namespace_not_empty",
            f"namespace {namespace.name!r} has workflows, and a delete would not remove them",
            namespace=namespace.name,
        )
    if (await server.api.call(ListSchedules(namespace=namespace.name, limit=1))).schedules:
        raise HttpError(
            409,
            "namespace_not_empty",
            f"namespace {namespace.name!r} has schedules, which would still fire; delete them first",
            namespace=namespace.name,
        )
    await server.namespaces.remove(namespace.name)
    return RemovedNamespaceAnswer(name=namespace.name, deleted={})


def _named(server: Server, request: HttpRequest) -> Namespace:
    name = request.params["namespace"].lower()
    server.namespaces.check(name)
    found = server.namespaces.get(name)
    assert found is not None, "checked just now"
    return found


def _shown(namespace: Namespace) -> NamespaceAnswer:
    return NamespaceAnswer(
        name=namespace.name,
        description=namespace.description,
        retention_days=namespace.retention_days,
        status="active",
        external_payload_storage=None,
        created_at=iso(namespace.created_at),
        updated_at=iso(namespace.updated_at),
    )


ROUTES = [
    Route("GET", "/api/namespaces", listing, "control", OPERATOR, any_namespace=True),
    Route(
        "POST",
        "/api/namespaces",
        create,
        "control",
        ADMIN,
        any_namespace=True,
        body=CreateNamespaceBody,
        told=NamespaceAnswer,
    ),
    Route("GET", "/api/namespaces/{namespace}", describe, "control", OPERATOR, any_namespace=True),
    Route("PUT", "/api/namespaces/{namespace}", update, "control", ADMIN, any_namespace=True, body=UpdateNamespaceBody),
    Route("DELETE", "/api/namespaces/{namespace}", remove, "control", ADMIN, any_namespace=True),
]
