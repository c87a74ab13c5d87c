"""Values shared by every part of the kernel: time, routing, ids derived from a run.

Time is whole microseconds since the epoch, handed in by the shell; nothing here reads a clock.
Ids of steps, attempts, tasks and commands derive from the run they belong to, so they need no generator,
are the same after a crash, and name their run.
"""

from __future__ import annotations

import re
from binascii import crc32
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal, Protocol

from msgspec import Meta, Struct
from msgspec.structs import replace

from backstay.ulid import CROCKFORD

Micros = Annotated[int, Meta(extra={"time": True})]
"""Microseconds since the epoch. The annotation lets the wire write such fields as ISO-8601."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = 1_000_000
LEASE = 300 * SECOND

CODEC = "avro"
"""The one payload codec; the kernel only tags with it and never looks inside a payload."""

MAX_ID = 191
_ID = re.compile(r"[A-Za-z0-9._:~-]{1,191}")


SCHEDULES = "/schedules"
"""The suffix that makes of a namespace the one of its schedules. No namespace of workflows has a slash in its name."""

STREAMS = "/streams"
"""The suffix for the output streams of its runs."""

InstanceKind = Literal["workflow", "schedule", "stream"]


def moment(at: Micros) -> datetime:
    """A time as people read it, in UTC."""
    return EPOCH + timedelta(microseconds=at)


def instance_kind(namespace: str) -> InstanceKind:
    """The kind of instances of a namespace: workflows, or by its suffix schedules or streams."""
    if "/" not in namespace:
        return "workflow"
    return "schedule" if namespace.endswith(SCHEDULES) else "stream"


def base_namespace(namespace: str) -> str:
    """The namespace of workflows that one of schedules or streams belongs to."""
    return namespace.partition("/")[0]


KEY_BITS = 12  # of a key that are the partition of its instance
PARTITIONS = 1 << KEY_BITS
KEY_EPOCH: Micros = 1_577_836_800 * SECOND  # 2020; the other bits of a key are microseconds since then


def partition_of(namespace: str, workflow_id: str) -> int:
    """The partition of an instance: a hash of its name. A stream is in the partition of the run that it belongs to.

    The keys of an instance, of its runs and of its sends end with their partition, and so does a run id. So every row says by
    arithmetic to which part of the instances it belongs. For rows of releases before partitions that is only a hint.
    """
    if namespace.endswith(STREAMS):
        return partition_in(workflow_id.partition(":")[0])
    return crc32(f"{namespace}\0{workflow_id}".encode(errors="replace")) % PARTITIONS


def partition_in(run_id: str) -> int:
    """The partition that the last characters of a run id, or of an id derived from one, stand for."""
    last = run_of(run_id)[-3:]
    return sum(CROCKFORD.find(digit) << shift for digit, shift in zip(last, (10, 5, 0), strict=False)) % PARTITIONS


class Ids(Protocol):
    """A source of new ids. Run ids and serials are unique; a key may be minted twice, which its commit finds out."""

    def ulid(self) -> str: ...
    def run_id(self, partition: int) -> str:
        """A ULID that ends with the partition."""
        ...

    def key(self, partition: int) -> int:
        """Grows with time, and ends with the partition."""
        ...

    def serial(self) -> int:
        """Differs from every other; says nothing about time."""
        ...


class Routing(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a task may run, and in which order. Inherited from the run unless a step says otherwise."""

    namespace: str = "default"
    connection: str | None = None
    queue: str = "default"
    compatibility: str | None = None
    priority: int = 5
    fairness_key: str | None = None
    fairness_weight: int = 1


def reroute(routing: Routing, *, queue: str | None = None, connection: str | None = None) -> Routing:
    """The same routing with another queue or connection, where one is named."""
    if queue is None and connection is None:
        return routing
    return replace(routing, queue=queue or routing.queue, connection=connection or routing.connection)


def valid_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def execution_id(run_id: str, step: int) -> str:
    return f"{run_id}-{step}"


def attempt_id(run_id: str, step: int, attempt: int) -> str:
    return f"{run_id}-{step}-{attempt}"


def activity_task_id(run_id: str, step: int, retry: int) -> str:
    return f"{run_id}-a{step}.{retry}"


def is_activity_task(task_id: str) -> bool:
    return "-a" in task_id


def workflow_task_id(run_id: str, sequence: int) -> str:
    return f"{run_id}-w{sequence}"


def timer_id(run_id: str, step: int) -> str:
    return f"{run_id}-t{step}"


def failure_id(run_id: str, sequence: int) -> str:
    return f"{run_id}-f{sequence}"


def event_id(run_id: str, sequence: int) -> str:
    return f"{run_id}-e{sequence}"


def command_id(run_id: str, sequence: int) -> str:
    return f"{run_id}-c{sequence}"


def signal_id(run_id: str, command_sequence: int) -> str:
    return f"{run_id}-s{command_sequence}"


def signal_wait_id(run_id: str, step: int) -> str:
    return f"{run_id}-q{step}"


def update_id(run_id: str, command_sequence: int, history_length: int | None = None) -> str:
    """The id of an update. `history_length`: of the run when the update was accepted; a search begins there."""
    return (
        f"{run_id}-u{command_sequence}" if history_length is None else f"{run_id}-u{command_sequence}.{history_length}"
    )


def accepted_after(update_id: str) -> int:
    """The length of the run's history when an update was accepted, if its id says so; otherwise 0."""
    history_length = update_id.rpartition(".")[2]
    return (
        int(history_length)
        if history_length.isdecimal() and history_length.isascii() and len(history_length) < 19
        else 0
    )


def update_task_id(run_id: str, sequence: int) -> str:
    return f"{run_id}-v{sequence}"


def is_update_task(task_id: str) -> bool:
    """Whether a task is that of an update."""
    return task_id.partition("-")[2].startswith("v")


def child_call_id(run_id: str, step: int) -> str:
    return f"{run_id}-h{step}"


def condition_wait_id(run_id: str, step: int) -> str:
    return f"{run_id}-k{step}"


def run_of(derived_id: str) -> str:
    """The run id that a task, attempt, execution, timer or command id was derived from."""
    return derived_id.partition("-")[0]


def seconds(delay: float) -> Micros:
    return round(delay * SECOND)
