"""Saved views of operators: a bucket of runs with filters, under a name. Some come with the server."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from backstay.server.operators.run_filters import Filters, Plain
from backstay.server.operators.visibility_contract import SUPPORTED, VERSION

SAVED_VIEWS = 2 << 20
"""Bytes of all views of a namespace."""


class SavedViewAnswer(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    bucket: str
    version: Annotated[int, Meta(description="Of the contract of filters that it was saved under.")]
    filters: dict[str, Any]
    labels: dict[str, str | list[str]]
    attributes: dict[str, str | list[str]]
    owner: str | None
    position: Annotated[int, Meta(description="Its place among the views.")]
    system: Annotated[bool, Meta(description="It comes with the server and cannot be changed.")]
    status: Literal["supported", "unsupported"]
    message: str | None


class SavedView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`filters` are parameters of a list, also `q`, times, `sort` and `order`. `position`: its place among the views."""

    id: str
    name: str
    bucket: str
    version: int = VERSION
    filters: dict[str, Plain] = {}
    labels: dict[str, str | list[str]] = {}
    attributes: dict[str, str | list[str]] = {}
    owner: str | None = None
    position: int = 0
    created_at: int | None = None
    updated_at: int | None = None

    @property
    def asks(self) -> Filters:
        return Filters(fields=self.filters, labels=self.labels, attributes=self.attributes)

    def shown(self) -> SavedViewAnswer:
        known = self.version in SUPPORTED
        return SavedViewAnswer(
            id=self.id,
            name=self.name,
            bucket=self.bucket,
            version=self.version,
            filters=self.filters,
            labels=self.labels,
            attributes=self.attributes,
            owner=self.owner,
            position=self.position,
            system=self.id in SYSTEM,
            status="supported" if known else "unsupported",
            message=None if known else f"saved under version {self.version}; this server knows up to {VERSION}",
        )


SYSTEM = {
    view.id: view
    for view in (
        *(
            SavedView(id=f"system:{bucket}", name=bucket.title(), bucket=bucket)
            for bucket in ("running", "completed", "failed", "cancelled", "terminated")
        ),
        SavedView(
            id="system:running-task-problems",
            name="Running, with task problems",
            bucket="running",
            filters={"task_problem": True},
        ),
        SavedView(
            id="system:running-repair-blocked",
            name="Running, repair blocked",
            bucket="running",
            filters={"repair_attention": True},
        ),
    )
}
