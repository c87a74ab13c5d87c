"""The items that need attention, by cause: number, since when, one sentence, a link and an action.

The causes of a run itself (blocked, repair needed, retrying) come from its summary. The causes that depend on the clock
or the fleet are found on request: no worker, overdue, held back, failing types, late schedules, long histories.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal
from urllib.parse import quote, urlencode

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict

from backstay.engine.reading.gaps import FleetGap
from backstay.kernel.features.repair import REPAIR
from backstay.kernel.features.retry_now import RETRY_NOW
from backstay.kernel.spans import whole_span
from backstay.kernel.values import SECOND, Micros
from backstay.kernel.views.why_open import NO_ENGINE, START_ENGINE
from backstay.protocol.tasks import optional_iso
from backstay.server.operators.fleet import Fleet
from backstay.server.operators.queue_views import QueueState, QueueViews
from backstay.server.operators.tallies import WindowFigures
from backstay.store.figures import (
    AttentionCount,
    DamagedRun,
    OpenSizes,
    OverdueCount,
    ReadyGroup,
    ScheduleCounts,
    WaitingGroup,
)

LATE = 10 * SECOND  # a wake that passed longer ago is overdue, and so is a schedule
DAMAGED_LOOKED_AT = 10_000  # runs with a damaged history that are counted
LATE_LOOKED_AT = 10_000  # overdue wakes that are counted
FAILING = 0.9  # a type with a lower pass rate fails too often
ENOUGH = 5  # ends of a type in a window, or its rate says nothing
NAMED = 20  # entries of one cause: queues without a worker, failing types

Tone = Literal["warning", "danger"]

_SAID = {
    "blocked": (
        "1 run is blocked: its code does not fit its history, so it waits for other code or a repair.",
        "{runs} runs are blocked: their code does not fit their history, so they wait for other code or a repair.",
    ),
    "repair_needed": (
        "1 run needs a repair: something that its history expects is missing.",
        "{runs} runs need a repair: something that their history expects is missing.",
    ),
    "retrying": ("1 run is trying again after a failure.", "{runs} runs are trying again after a failure."),
}
_TONES: dict[str, Tone] = {"blocked": "danger", "repair_needed": "danger"}
_STORED_ACTIONS = {
    "blocked": ("deploy", "Deploy code that fits, or repair the run"),
    "repair_needed": (REPAIR.name, REPAIR.label),
    "retrying": (RETRY_NOW.name, RETRY_NOW.label),
}


class AttentionAction(Struct, frozen=True, kw_only=True):
    verb: str
    label: str


class AttentionAbout(Struct, frozen=True, kw_only=True):
    """The subject of a cause. The fields depend on the cause."""

    task_queue: str | UnsetType = UNSET
    task_type: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    build_id: str | UnsetType | None = UNSET
    missing: Annotated[
        str | UnsetType, Meta(description="What no live worker has: the queue, the type or the build.")
    ] = UNSET
    tasks: int | UnsetType = UNSET
    workflow_type: str | UnsetType = UNSET
    pass_rate: float | UnsetType = UNSET


class AttentionAnswer(AttentionAbout, frozen=True, kw_only=True):
    cause: str
    tone: Literal["warning", "danger"]
    count: Annotated[int, Meta(description="How many runs, queues or schedules the cause is about.")]
    oldest_since: str | None
    oldest_age_seconds: float | None
    sentence: str
    link: Annotated[str, Meta(description="The list of its runs, queues or schedules.")]
    action: AttentionAction


class Attention(Struct, frozen=True, kw_only=True):
    """One cause. `link`: the list of its runs, queues or schedules. `action`: the action that helps, as a verb and in
    words."""

    cause: str
    tone: Tone
    count: int
    sentence: str
    link: str
    action: tuple[str, str]
    oldest: Micros | None = None
    about: AttentionAbout = AttentionAbout()

    def shown(self, now: Micros) -> AttentionAnswer:
        return AttentionAnswer(
            cause=self.cause,
            tone=self.tone,
            count=self.count,
            oldest_since=optional_iso(self.oldest),
            oldest_age_seconds=None if self.oldest is None else max(now - self.oldest, 0) / SECOND,
            sentence=self.sentence,
            link=self.link,
            action=AttentionAction(verb=self.action[0], label=self.action[1]),
            **asdict(self.about),
        )


def without_engine(runs: int, schedules: int) -> list[Attention]:
    """No process decides anything here. It needs attention if something waits for that: open runs, or schedules that fire."""
    if not runs and not schedules:
        return []
    waiting = [f"{number} {kind}{'' if number == 1 else 's'}" for number, kind in _waiting(runs, schedules)]
    verb, label, how = START_ENGINE
    return [
        Attention(
            cause="no_engine",
            tone="danger",
            count=runs + schedules,
            sentence=f"{NO_ENGINE}: {' and '.join(waiting)} {'waits' if runs + schedules == 1 else 'wait'}.",
            link=runs_link("running"),
            action=(verb, f"{label}: {how}"),
        )
    ]


def _waiting(runs: int, schedules: int) -> list[tuple[int, str]]:
    return [(number, kind) for number, kind in ((runs, "open run"), (schedules, "active schedule")) if number]


def stored(counts: Sequence[AttentionCount], damaged: Sequence[DamagedRun] = ()) -> list[Attention]:
    """Causes that summaries have. Runs with a damaged history are separate from other blocked runs."""
    counts = [
        one._replace(runs=one.runs - len(damaged)) if one.cause == "blocked" and damaged else one for one in counts
    ]
    return [
        Attention(
            cause=one.cause,
            tone=_TONES.get(one.cause, "warning"),
            count=one.runs,
            oldest=one.oldest,
            sentence=_sentence(one),
            link=runs_link("running", attention=one.cause),
            action=_STORED_ACTIONS.get(one.cause, ("look", "Look at them")),
        )
        for one in sorted(counts)
        if one.runs > 0
    ]


def _sentence(one: AttentionCount) -> str:
    other = f"{one.runs} runs need attention: {one.cause}."
    alone, several = _SAID.get(one.cause, (other, other))
    return alone if one.runs == 1 else several.format(runs=one.runs)


def without_worker(
    fleet: Fleet, namespace: str, waiting: Sequence[WaitingGroup], ready: Sequence[ReadyGroup], now: Micros
) -> list[Attention]:
    """Tasks that no live worker can take: of their queue, of their type, or of their build. `ready` counts their runs."""
    runs = {(one.queue, one.kind, one.type, one.build): one.runs for one in ready}
    found: list[Attention] = []
    for group in sorted(waiting, key=lambda group: -group.tasks):
        takers = fleet.takers(group.kind, group.type, namespace, group.queue, group.build)
        if takers.missing is None:
            continue
        what = f"{group.kind} {group.type}"
        waited = whole_span(now - group.oldest)
        tasks = "1 task waits" if group.tasks == 1 else f"{group.tasks} tasks wait"
        if takers.missing == "queue":
            sentence = (
                f"No live worker serves queue {group.queue!r}: {tasks} there for {what}, the oldest for {waited}."
            )
            action = f"Start a worker of queue {group.queue!r}"
        elif takers.missing == "type":
            sentence = f"No live worker of queue {group.queue!r} runs {what}: {tasks}, the oldest for {waited}."
            action = f"Register {what} with a worker of queue {group.queue!r}"
        else:
            sentence = f"No live worker of queue {group.queue!r} has build {group.build}: {tasks} for {what}, the oldest for {waited}."
            action = f"Start a worker of queue {group.queue!r} with build {group.build}"
        found.append(
            Attention(
                cause="no_worker",
                tone="danger",
                count=runs.get((group.queue, group.kind, group.type, group.build), group.tasks),
                oldest=group.oldest,
                sentence=sentence,
                link=runs_link("running", attention="no_worker", queue=group.queue),
                action=("start_worker", action),
                about=AttentionAbout(
                    missing=takers.missing,
                    task_queue=group.queue,
                    task_type=group.kind,
                    type=group.type,
                    build_id=group.build,
                    tasks=group.tasks,
                ),
            )
        )
    return found[:NAMED]


def without_connection(gaps: Sequence[FleetGap], now: Micros) -> list[Attention]:
    """Tasks whose queue, type and build live workers have, and none of them serves their connection."""
    found: list[Attention] = []
    for gap in sorted(gaps, key=lambda gap: -gap.count):
        if gap.missing != "connection":
            continue
        tasks = "1 task waits" if gap.count == 1 else f"{gap.count} tasks wait"
        needs = "tasks without a connection" if gap.connection is None else f"connection {gap.connection!r}"
        found.append(
            Attention(
                cause="no_worker",
                tone="danger",
                count=gap.count,
                oldest=gap.oldest,
                sentence=f"No live worker of queue {gap.queue!r} takes {needs}: {tasks} for {gap.kind} {gap.type},"
                f" the oldest for {whole_span(now - gap.oldest)}.",
                link=runs_link("running", attention="no_worker", queue=gap.queue),
                action=("start_worker", f"Start a worker of queue {gap.queue!r} that takes {needs}"),
                about=AttentionAbout(
                    missing="connection",
                    task_queue=gap.queue,
                    task_type=gap.kind,
                    type=gap.type,
                    build_id=gap.build,
                    tasks=gap.count,
                ),
            )
        )
    return found[:NAMED]


def failing(figures: WindowFigures) -> list[Attention]:
    """Workflow types that fail too often in the window, the worst first."""
    found: list[tuple[float, Attention]] = []
    for one in figures.types:
        rate = one.pass_rate
        if rate is None or rate >= FAILING or one.ended < ENOUGH:
            continue
        failed = one.counts.get("failed", 0)
        attention = Attention(
            cause="failing",
            tone="danger" if rate < 0.5 else "warning",
            count=failed,
            sentence=f"{failed} of {one.ended} runs of {one.workflow_type} failed in the {figures.window.said}"
            f" ({failed / one.ended:.0%}).",
            link=runs_link("failed", workflow_type=one.workflow_type),
            action=("look", "Look at the failures"),
            about=AttentionAbout(workflow_type=one.workflow_type, pass_rate=rate),
        )
        found.append((rate, attention))
    return [attention for _, attention in sorted(found, key=lambda pair: pair[0])[:NAMED]]


def overdue(found: OverdueCount, elsewhere: bool, now: Micros) -> list[Attention]:
    if not found.instances:
        return []
    oldest = found.oldest or now
    number = "1 run" if found.instances == 1 else f"{found.instances} runs"
    if found.instances >= LATE_LOOKED_AT:
        number = f"At least {number}"
    late = "should have continued by now"
    why = "; another process is the engine" if elsewhere else ""
    return [
        Attention(
            cause="overdue",
            tone="danger",
            count=found.instances,
            oldest=oldest,
            sentence=f"{number} {late}, the first {whole_span(now - oldest)} ago{why}.",
            link=runs_link("running", attention="overdue"),
            action=("repair", "Run a repair pass"),
        )
    ]


def held_back(views: QueueViews, queues: Sequence[QueueState]) -> list[Attention]:
    """Queues whose tasks wait because of a limit."""
    found: list[Attention] = []
    for queue in queues:
        waiting = queue.backlog()
        sentence = views.throttled_because(queue) if waiting else None
        if sentence is not None:
            found.append(
                Attention(
                    cause="throttled",
                    tone="warning",
                    count=waiting,
                    oldest=queue.oldest,
                    sentence=sentence,
                    link=f"/api/task-queues/{quote(queue.name, safe='')}/tasks",
                    action=("raise_limit", "Raise the limit, or wait"),
                    about=AttentionAbout(task_queue=queue.name),
                )
            )
    return found[:NAMED]


def late_schedules(counts: ScheduleCounts, now: Micros) -> list[Attention]:
    if not counts.overdue:
        return []
    number = "1 schedule has" if counts.overdue == 1 else f"{counts.overdue} schedules have"
    oldest = counts.next if counts.next is not None else now
    return [
        Attention(
            cause="missed_schedules",
            tone="danger",
            count=counts.overdue,
            oldest=oldest,
            sentence=f"{number} not fired in time, the first was due {whole_span(now - oldest)} ago.",
            link="/api/schedules?status=active",
            action=("look", "Check that an engine runs this database"),
        )
    ]


def over_budget(found: OpenSizes) -> list[Attention]:
    if not found.over:
        return []
    number = "1 run has" if found.over == 1 else f"{found.over} runs have"
    return [
        Attention(
            cause="history_budget",
            tone="warning",
            count=found.over,
            sentence=f"{number} a history over the budget: the longest has {found.events} events, the largest"
            f" {found.bytes} bytes.",
            link=runs_link("running", continue_as_new_recommended="true"),
            action=("continue_as_new", "Let their code continue as new"),
        )
    ]


def damaged(runs: Sequence[DamagedRun]) -> list[Attention]:
    """Runs whose history cannot be folded."""
    if not runs:
        return []
    number = "1 run cannot go on: its" if len(runs) == 1 else f"{len(runs)} runs cannot go on: their"
    if len(runs) >= DAMAGED_LOOKED_AT:
        number = f"At least {number}"
    return [
        Attention(
            cause="history_damaged",
            tone="danger",
            count=len(runs),
            oldest=runs[0].since,
            sentence=f"{number} stored history is damaged.",
            link=runs_link("running", attention="blocked"),
            action=("restore", "Restore a backup"),
        )
    ]


def stranded(runs: int) -> list[Attention]:
    if not runs:
        return []
    number = "1 open run has" if runs == 1 else f"{runs} open runs have"
    return [
        Attention(
            cause="stranded",
            tone="danger",
            count=runs,
            sentence=f"{number} nothing on disk that will resume them.",
            link="/api/system/liveness",
            action=("repair", "Run a repair pass"),
        )
    ]


def runs_link(bucket: str, **filters: str) -> str:
    """The address of a list of runs."""
    return f"/api/flows/{bucket}?{urlencode(filters)}"
