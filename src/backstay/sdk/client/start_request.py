"""Requests that start workflows and standalone activities: the options of a start, and the requests made from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from backstay.codec.values import dumps
from backstay.kernel.features.activity import ScheduleActivity
from backstay.kernel.features.start import STANDALONE, DuplicatePolicy
from backstay.kernel.features.start import RecordedDefinition as Snapshot
from backstay.kernel.values import Routing
from backstay.protocol import requests as ask
from backstay.sdk.author.activity import ActivityDefinition
from backstay.sdk.author.durations import Duration, to_seconds
from backstay.sdk.author.workflow import NamedWorkflow
from backstay.sdk.author.workflow_definition import WorkflowDefinition
from backstay.sdk.tracing import is_imported, outgoing


class StartOptions(TypedDict, total=False):
    """Options of a start, beside the workflow's own arguments.

    `if_exists` says what to do if the id is taken. `timeout` bounds the whole workflow, `run_timeout` each run. A start that is
    repeated with the same `request_id` returns what it returned the first time. `update_timeout` is how long `update()` waits;
    None means without limit.
    """

    queue: str
    business_key: str
    labels: Mapping[str, str]
    memo: Mapping[str, Any]
    search: Mapping[str, Any]
    timeout: Duration
    run_timeout: Duration
    if_exists: DuplicatePolicy
    priority: int
    fairness_key: str
    fairness_weight: int
    compatibility: str
    connection: str
    request_id: str
    update_timeout: Duration | None


def activity_request(
    namespace: str,
    options: StartOptions,
    activity: ActivityDefinition[Any, Any],
    id: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> ask.StartWorkflow:
    """Return the request that starts a standalone activity. Raises `TypeError` if that is not possible."""
    if not isinstance(activity, ActivityDefinition):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{activity!r} is not an activity; to start a workflow, use start()")
    if activity.local:
        raise TypeError(f"{activity.type!r} is a local activity, which runs only inside a workflow")
    if id is not None and not isinstance(id, str):
        raise _no_id(id)
    scheduled = ScheduleActivity(
        activity_type=activity.type,
        arguments=activity.signature.pack_fitting(args, kwargs),
        retry_policy=activity.policy,
        **activity.carried,
    )
    return _request(namespace, options, STANDALONE, id, activity.queue, None, None, scheduled)


def start_request(
    namespace: str,
    options: StartOptions,
    definition: WorkflowDefinition | NamedWorkflow,
    id: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> ask.StartWorkflow:
    """Return the request that starts a workflow. Raises `TypeError` if the arguments do not fit."""
    if id is not None and not isinstance(id, str):
        raise _no_id(id)  # checked first: if the id was forgotten, the first argument stands in its place
    if kwargs and isinstance(definition, NamedWorkflow):
        raise TypeError(f"{definition.type!r} is given by its type, so its arguments are given by position")
    arguments = definition.signature.pack_fitting(args, kwargs)
    return _request(namespace, options, definition.type, id, definition.queue, arguments, definition.snapshot, None)


def _request(
    namespace: str,
    o: StartOptions,
    type: str,
    id: str | None,
    queue: str | None,
    arguments: bytes | None,
    definition: Snapshot | None,
    activity: ScheduleActivity | None,
) -> ask.StartWorkflow:
    routing = _routing(namespace, queue, o) if o else Routing(namespace=namespace, queue=queue or "default")
    traceparent = outgoing(type, id, routing) if is_imported() else None
    if not o:
        return ask.StartWorkflow(
            workflow_type=type,
            workflow_id=id,
            namespace=namespace,
            arguments=arguments,
            routing=routing,
            definition=definition,
            activity=activity,
            traceparent=traceparent,
        )
    timeout, run_timeout = o.get("timeout"), o.get("run_timeout")
    return ask.StartWorkflow(
        workflow_type=type,
        workflow_id=id,
        namespace=namespace,
        arguments=arguments,
        routing=routing,
        business_key=o.get("business_key"),
        visibility_labels=dict(o.get("labels", {})),
        memo={key: dumps(value) for key, value in o.get("memo", {}).items()},
        search_attributes=dict(o.get("search", {})),
        execution_timeout_seconds=None if timeout is None else to_seconds(timeout),
        run_timeout_seconds=None if run_timeout is None else to_seconds(run_timeout),
        duplicate_policy=o.get("if_exists", "reject_duplicate"),
        definition=definition,
        request_id=o.get("request_id"),
        activity=activity,
        traceparent=traceparent,
    )


def _routing(namespace: str, queue: str | None, o: StartOptions) -> Routing:
    return Routing(
        namespace=namespace,
        connection=o.get("connection"),
        queue=o.get("queue") or queue or "default",
        compatibility=o.get("compatibility"),
        priority=o.get("priority", 5),
        fairness_key=o.get("fairness_key"),
        fairness_weight=o.get("fairness_weight", 1),
    )


def _no_id(id: object) -> TypeError:
    return TypeError(f"the first argument is the workflow id: text, or None to generate one, not {id!r}")
