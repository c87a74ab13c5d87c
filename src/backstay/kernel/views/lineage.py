"""The lineage of a run: its parent and its children, the run before it and the run after it.

Their ids stand in the run's own history. A child is one entry under its `child_call_id`, however many runs it had. The
state of the other runs of the chain comes from the index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from backstay.kernel.call_options import ChildCallOptions, shown_options
from backstay.kernel.decision import RunRow
from backstay.kernel.event import Recorded
from backstay.kernel.features.child import CarriedChildClosed, ChildRunStarted, ChildWorkflowScheduled
from backstay.kernel.features.child.records import ChildClosed
from backstay.kernel.features.continue_as_new import WorkflowContinuedAsNew
from backstay.kernel.features.fork import WorkflowRewound
from backstay.kernel.features.start import WorkflowStarted
from backstay.kernel.values import Micros, instance_kind

CHILD = "child_workflow"
CONTINUED = "continue_as_new"


READS = (
    *(WorkflowStarted, ChildWorkflowScheduled, ChildRunStarted, ChildClosed, CarriedChildClosed),
    *(WorkflowContinuedAsNew, WorkflowRewound),
)
"""The events from which lineage is made."""


class Link(Struct, kw_only=True):
    """The other end of a link, as far as this run's history knows it."""

    id: str
    link_type: str  # child_workflow | continue_as_new
    child_call_id: str | None = None
    sequence: int | None = None  # the step of the call
    workflow_instance_id: str
    workflow_run_id: str | None = None
    run_number: int | None = None
    workflow_type: str | None = None
    workflow_class: str | None = None
    status: str | None = None
    closed_reason: str | None = None
    parent_close_policy: str | None = None
    options: dict[str, Any] | UnsetType = UNSET  # of the call, those that were given and have no field here
    is_primary_parent: bool = False
    linked_at: Micros


class Lineage(Struct, kw_only=True):
    parents: list[Link]
    children: list[Link]


def lineage(history: Iterable[Recorded], number: int, chain: Mapping[str, RunRow]) -> Lineage:
    """`number`: of the run. `chain`: the runs before and after it that still exist."""
    parents: list[Link] = []
    children: dict[str, Link] = {}
    instance = ""
    for entry in history:
        match entry.event:
            case WorkflowStarted() as event:
                instance = event.workflow_instance_id
                parents = _parents(event, entry.at, number)
                children = {link.id: link for link in _carried(event, entry.at)}
            case ChildWorkflowScheduled() as event:
                children[event.child_call_id] = _child(event, entry.at)
            case ChildRunStarted() as event if event.child_call_id in children:
                link = children[event.child_call_id]
                link.workflow_run_id, link.run_number = event.child_workflow_run_id, event.child_run_number
            case ChildClosed() | CarriedChildClosed() as event if event.child_call_id in children:
                link = children[event.child_call_id]
                link.workflow_run_id, link.status = event.child_workflow_run_id, event.child_status
                if isinstance(event, ChildClosed):
                    link.run_number, link.closed_reason = event.child_run_number, event.closed_reason
            case WorkflowContinuedAsNew() | WorkflowRewound() as event:
                id = event.workflow_link_id if isinstance(event, WorkflowContinuedAsNew) else event.continued_to_run_id
                children[id] = Link(
                    id=id,
                    link_type=CONTINUED,
                    sequence=event.sequence if isinstance(event, WorkflowContinuedAsNew) else None,
                    workflow_instance_id=instance,
                    workflow_run_id=event.continued_to_run_id,
                    run_number=event.continued_to_run_number,
                    linked_at=entry.at,
                )
            case _:
                pass
    found = Lineage(parents=parents, children=list(children.values()))
    for link in (*found.parents, *found.children):
        beside = chain.get(link.workflow_run_id or "") if link.link_type == CONTINUED else None
        if beside is not None:
            link.workflow_type, link.status, link.closed_reason = (
                *(beside.workflow_type, beside.status, beside.closed_reason),
            )
    return found


def continued(history: Iterable[Recorded]) -> list[str]:
    """The runs before and after this one in its chain."""
    found: list[str] = []
    for entry in history:
        match entry.event:
            case WorkflowStarted(continued_from_run_id=str(run_id)):
                found.append(run_id)
            case WorkflowContinuedAsNew(continued_to_run_id=run_id) | WorkflowRewound(continued_to_run_id=run_id):
                found.append(run_id)
            case _:
                pass
    return found


def _parents(event: WorkflowStarted, at: Micros, number: int) -> list[Link]:
    found: list[Link] = []
    scheduled = instance_kind(event.parent_namespace or "") == "schedule"  # a schedule is no parent workflow
    if event.child_call_id is not None and event.parent_workflow_instance_id is not None and not scheduled:
        found.append(
            Link(
                id=event.child_call_id,
                link_type=CHILD,
                child_call_id=event.child_call_id,
                sequence=event.parent_sequence,
                workflow_instance_id=event.parent_workflow_instance_id,
                workflow_run_id=event.parent_workflow_run_id,
                is_primary_parent=True,
                linked_at=at,
            )
        )
    if event.continued_from_run_id is not None:
        found.append(
            Link(
                id=event.continued_from_run_id,
                link_type=CONTINUED,
                workflow_instance_id=event.workflow_instance_id,
                workflow_run_id=event.continued_from_run_id,
                run_number=number - 1,
                # A run whose history was taken over may have ended in any way.
                status="completed" if event.seed is None else None,
                closed_reason="continued" if event.seed is None else None,
                linked_at=at,
            )
        )
    return found


def _carried(event: WorkflowStarted, at: Micros) -> Iterable[Link]:
    """Children that an earlier run of the chain left open: they are closed with the chain, too."""
    for child in event.open_children:
        yield Link(
            id=child.child_call_id,
            link_type=CHILD,
            child_call_id=child.child_call_id,
            workflow_instance_id=child.child_workflow_instance_id,
            status="waiting",
            parent_close_policy=child.parent_close_policy,
            linked_at=at,
        )


def _child(event: ChildWorkflowScheduled, at: Micros) -> Link:
    return Link(
        id=event.child_call_id,
        link_type=CHILD,
        child_call_id=event.child_call_id,
        sequence=event.sequence,
        workflow_instance_id=event.child_workflow_instance_id,
        workflow_run_id=event.child_workflow_run_id,
        run_number=1,
        workflow_type=event.child_workflow_type,
        workflow_class=event.child_workflow_class,
        status="waiting",
        parent_close_policy=event.parent_close_policy,
        options=shown_options(ChildCallOptions, event, "parent_close_policy"),
        linked_at=at,
    )
