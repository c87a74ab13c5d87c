"""Routes of data that is derived from runs: stored views, their rebuild, and the liveness certificate."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import asdict

from backstay.engine.views.certificate import CertificateAnswer, shown_proof
from backstay.engine.views.stored_views import Rebuild, Rebuilt
from backstay.kernel.names import Name
from backstay.server.access.auth import ADMIN, OPERATOR
from backstay.server.http.messages import HttpRequest
from backstay.server.http.router import Route
from backstay.server.server import Server

Ids = Annotated[list[Name], Meta(max_length=1000)]


class RebuildBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run_ids: Ids = []
    instance_id: Name | None = None
    missing: bool = False
    needs_rebuild: bool = False
    prune_stale: bool = False
    dry_run: bool = False


class ProjectionsAnswer(Struct, frozen=True, kw_only=True):
    namespace: str
    projections: Annotated[
        dict[str, Any], Meta(description="By kind of view: how many there are, and how many are wrong.")
    ]


class RebuiltAnswer(Rebuilt, kw_only=True):
    namespace: str


async def projections(server: Server, request: HttpRequest) -> ProjectionsAnswer:
    """How the stored views of a namespace compare with its runs."""
    return ProjectionsAnswer(namespace=request.namespace, projections=await server.node.views.counts(request.namespace))


async def rebuild(server: Server, request: HttpRequest) -> RebuiltAnswer:
    """Make the stored views of runs again: of all, or of those that miss them or have wrong ones."""
    body = request.decode(RebuildBody)
    done = await server.node.views.rebuild(
        Rebuild(
            run_ids=tuple(body.run_ids),
            workflow_id=body.instance_id,
            namespace=request.namespace,
            missing=body.missing,
            needs_rebuild=body.needs_rebuild,
            prune_stale=body.prune_stale,
            dry_run=body.dry_run or request.flag("dry_run"),
        )
    )
    return RebuiltAnswer(namespace=request.namespace, **asdict(done))


async def liveness(server: Server, request: HttpRequest) -> CertificateAnswer:
    """The liveness certificate of a namespace. With `fresh=1` it is proven now."""
    certificate = server.node.certificate
    proof = certificate.proof
    if proof is None or request.flag("fresh"):
        proof = await certificate.prove()
    return shown_proof(proof, request.namespace, server.now)


ROUTES = [
    Route("GET", "/api/system/projections", projections, "control", OPERATOR),
    Route("POST", "/api/system/projections/rebuild", rebuild, "control", ADMIN, body=RebuildBody, own_dry_run=True),
    Route("GET", "/api/system/liveness", liveness, "control", OPERATOR),
]
