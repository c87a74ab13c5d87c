"""The family of a run as a tree: its parents upwards, its children and continued runs downwards, with their state of now.

Links stand in the histories of the runs, their state in the index. One request returns several levels, up to a number
of runs and of events; the answer marks omissions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from backstay.kernel.decision import RunRow
from backstay.kernel.event import Recorded
from backstay.kernel.views.lineage import CHILD, READS, Link
from backstay.kernel.views.lineage import lineage as links_of
from backstay.protocol.plain import plain
from backstay.protocol.tasks import optional_iso
from backstay.server.http.messages import HttpRequest
from backstay.server.published.control.parts.selected import (
    PartAnswer,
    about_run,
    check_parameters,
    part,
    selected_run,
)
from backstay.server.published.control.workflow_json import bucket
from backstay.server.server import Server
from backstay.store import RunFilter

LOOKED_AT = 100_000  # events of all runs together


class FamilyRun(Struct, kw_only=True):
    """A run in the tree. If it no longer exists, the facts that its relative has about it."""

    workflow_id: str
    run_id: str | None
    run_number: int | None
    workflow_type: str | None
    status: str | None
    status_bucket: str | None
    closed_reason: str | UnsetType | None = UNSET
    started_at: str | UnsetType | None = UNSET
    closed_at: str | UnsetType | None = UNSET
    history_length: int | UnsetType = UNSET
    exists: bool
    link: Annotated[dict[str, Any] | UnsetType, Meta(description="The link in the history of its relative.")] = UNSET
    children: list[FamilyRun] | UnsetType = UNSET
    children_count: int | UnsetType = UNSET
    generation: Annotated[int | UnsetType, Meta(description="Of a parent: 1 for the nearest.")] = UNSET
    of_run_id: Annotated[str | UnsetType, Meta(description="Of a parent: the run whose parent it is.")] = UNSET


class LineageAnswer(PartAnswer, frozen=True, kw_only=True):
    depth: int
    limit: int
    parents: list[FamilyRun]
    run: FamilyRun
    runs: Annotated[int, Meta(description="How many runs the tree has.")]
    looked_at: Annotated[int, Meta(description="How many events were looked at.")]
    complete: bool


async def lineage(server: Server, request: HttpRequest) -> LineageAnswer:
    """The parents, children and continued runs of a run, several levels deep, with their present state."""
    check_parameters(request, "depth", "limit")
    row = await selected_run(server, request)
    depth = request.integer("depth", 1, 1, 10)
    limit = request.integer("limit", 100, 1, 1000)
    tree = _Tree(server, limit)
    root, children = tree.branch(row, None)
    parents = await tree.above(row, depth)
    await tree.below([(row, root, children)], depth)
    return LineageAnswer(
        **about_run(row),
        depth=depth,
        limit=limit,
        parents=parents,
        run=root,
        runs=tree.count,
        looked_at=tree.looked_at,
        complete=tree.complete,
    )


class _Tree:
    def __init__(self, server: Server, limit: int) -> None:
        self._server = server
        self._limit = limit
        self._seen: set[str] = set()
        self.count = 0
        self.looked_at = 0
        self.complete = True  # nothing was left out for its number

    def node(self, row: RunRow | None, link: Link | None) -> FamilyRun:
        self.count += 1
        shown_link = UNSET if link is None else plain(link)
        if row is None:
            assert link is not None, "the first run exists"
            return FamilyRun(
                workflow_id=link.workflow_instance_id,
                run_id=link.workflow_run_id,
                run_number=link.run_number,
                workflow_type=link.workflow_type,
                status=link.status,
                status_bucket=None if link.status is None else bucket(link.status),
                exists=False,
                link=shown_link,
            )
        self._seen.add(row.run_id)
        return FamilyRun(
            workflow_id=row.workflow_id,
            run_id=row.run_id,
            run_number=row.number,
            workflow_type=row.workflow_type,
            status=row.status,
            status_bucket=bucket(row.status),
            closed_reason=row.closed_reason,
            started_at=optional_iso(row.started_at),
            closed_at=optional_iso(row.closed_at),
            history_length=row.length,
            exists=True,
            link=shown_link,
        )

    def branch(self, row: RunRow | None, link: Link | None) -> tuple[FamilyRun, list[FamilyRun]]:
        """A run in the tree, and the list of its children, which is still empty."""
        node, children = self.node(row, link), list[FamilyRun]()
        node.children = children
        return node, children

    async def above(self, row: RunRow, depth: int) -> list[FamilyRun]:
        """The parents of a run and the runs before it, nearest first, a list of them a level."""
        found: list[FamilyRun] = []
        level = [row]
        for generation in range(1, depth + 1):
            following: list[RunRow] = []
            for one in level:
                opening = await self._server.api.stored.history(one.key, 0, 2)
                self.looked_at += len(opening)
                for link in links_of(opening, one.number, {}).parents:
                    if self.count >= self._limit:
                        self.complete = False
                        return found
                    above = await self._row(one.namespace, link)
                    if above is not None and above.run_id in self._seen:
                        continue
                    node = self.node(above, link)
                    node.generation, node.of_run_id = generation, one.run_id
                    found.append(node)
                    following += [] if above is None else [above]
            level = following
        return found

    async def below(self, level: list[tuple[RunRow, FamilyRun, list[FamilyRun]]], depth: int) -> None:
        """Hang the children and the continued runs of these runs into the tree."""
        for _ in range(depth):
            following: list[tuple[RunRow, FamilyRun, list[FamilyRun]]] = []
            for row, node, children in level:
                links = await self._children(row)
                node.children_count = len(links)
                for link in links:
                    if self.count >= self._limit:
                        self.complete = False
                        break
                    below = await self._row(row.namespace, link)
                    if below is not None and below.run_id in self._seen:
                        continue
                    child, grandchildren = self.branch(below, link)
                    children.append(child)
                    if below is not None:
                        following.append((below, child, grandchildren))
                    if self.count % 50 == 0:
                        await self._server.api.slices.turn()
            level = following

    async def _children(self, row: RunRow) -> list[Link]:
        told: list[Recorded] = []

        def take(events: Sequence[Recorded]) -> None:
            told.extend(entry for entry in events if isinstance(entry.event, READS))

        last = LOOKED_AT - self.looked_at
        if last <= 0:
            self.complete = False
            return []
        reached = await self._server.api.slices.through(row.key, take, last=last)
        self.looked_at += reached
        self.complete = self.complete and reached >= row.length
        if len(told) < 1000:
            return links_of(told, row.number, {}).children
        return await self._server.api.slices.aside(lambda: links_of(told, row.number, {}).children)

    async def _row(self, namespace: str, link: Link) -> RunRow | None:
        """The run at the other end of a link as the index has it now; of a child its newest run."""
        store = self._server.api.stored
        if link.link_type == CHILD and not link.is_primary_parent:
            newest = await store.runs(RunFilter(namespace=namespace, workflow_id=link.workflow_instance_id, limit=1))
            return newest[0] if newest else None
        return None if link.workflow_run_id is None else await store.run(namespace, link.workflow_run_id)


ROUTES = part("lineage", lineage)
