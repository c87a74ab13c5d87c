"""`dw schedule ...`: workflows that are started by the clock. One command for each thing one can do to a schedule."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from backstay.cli import options
from backstay.cli.messages import alone, opened, parsed
from backstay.cli.plain_text import printable
from backstay.cli.problems import CliError, as_problems

if TYPE_CHECKING:
    from backstay.kernel.features.schedule import FiredOccurrence, Schedule

F = TypeVar("F", bound=Callable[..., Any])

OVERLAPS = ("skip", "buffer_one", "buffer_all", "cancel_other", "terminate_other", "allow_all")
LATER = "no engine runs this database now; it fires when one starts (dw dev FILE)"

SAID = {
    "status_not_triggerable": "the schedule is paused",
    "overlap_policy_skip": "an earlier workflow still runs",
    "buffer_full": "an earlier workflow still runs, and the buffer is full",
    "remaining_actions_exhausted": "it has reached max_runs",
    "already_started": "already started",
    "missed_occurrences": "no engine was running",
}


@click.group(name="schedule")
def command() -> None:
    """Create and control schedules, which start workflows by the clock.

    \b
    Examples:
      dw schedule create shop.py:report nightly '"emea"' --cron '0 2 * * *' --timezone Europe/Berlin
      dw schedule list
      dw schedule pause nightly --note "moving house"
    """


def _place(command: F) -> F:
    return options.place(options.namespace(command))


def _one(command: F) -> F:
    """The common options of commands about one schedule."""
    return click.argument("id")(_place(command))


def _when(command: F) -> F:
    """The options of a schedule at its creation and its update."""
    for option in (
        click.option("--note", metavar="TEXT", help="A note for readers, such as what the schedule is for."),
        click.option("--max-runs", metavar="N", type=click.IntRange(1), help="End the schedule after N runs."),
        click.option(
            "--jitter", metavar="DURATION", help="Fire later by a random time of at most this, to spread load: 30s."
        ),
        click.option(
            "--overlap", type=click.Choice(OVERLAPS), help="What to do while an earlier run is open. Default: skip."
        ),
        click.option(
            "--timezone", metavar="ZONE", help="The time zone of the cron expressions: Europe/Berlin. Default: UTC."
        ),
        click.option(
            "--offset", metavar="DURATION", help="Shift --every: `--every 1h --offset 5m` fires at 5 past each hour."
        ),
        click.option("--every", metavar="DURATION", multiple=True, help="An interval, like 15m, 6h or 1d."),
        click.option("--cron", metavar="EXPRESSION", multiple=True, help="Five fields, or @hourly, @daily, @weekly."),
    ):
        command = option(command)
    return command


def _told(given: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, as the client takes them."""
    return {name: value for name, value in given.items() if value}


# A negative number is an argument of the workflow, not an option of ours.
@command.command(name="create", context_settings={"ignore_unknown_options": True})
@click.argument("workflow", metavar="FILE:WORKFLOW")
@click.argument("id")
@click.argument("args", nargs=-1, metavar="[JSON ARGS]...")
@_place
@_when
@click.option("--paused", is_flag=True, help="Create the schedule paused.")
def create(
    workflow: str, id: str, args: tuple[str, ...], path: options.Place, namespace: str, paused: bool, **given: Any
) -> None:
    """Create schedule ID, which starts WORKFLOW of FILE with these arguments.

    \b
    Examples:
      dw schedule create shop.py:report nightly '"emea"' --cron '0 2 * * *' --timezone Europe/Berlin
      dw schedule create shop.py:poll poller --every 15m --jitter 30s --overlap skip
      dw schedule create shop.py:report month-end --cron '0 6 1 * *' --paused --note "from March on"
    """
    from backstay.cli.loading import load

    file, colon, name = workflow.rpartition(":")
    if not colon or not file or not name:
        raise CliError(f"{workflow!r} names no workflow; write FILE:WORKFLOW, for example shop.py:report")
    if not (given["cron"] or given["every"]):
        raise CliError("a schedule needs --cron or --every, which say when it fires")
    values = parsed(args, "dw schedule create")
    target = load(Path(file)).workflow(name)

    from backstay import Backstay
    from backstay.cli.start import check_arguments

    check_arguments(target, values)
    there = isinstance(path, options.ServerAt)
    place = opened(path, namespace) if there else Backstay(path, namespace=namespace, queues=(), client_only=True)
    with as_problems(), _durations(), place as backstay:
        schedule = backstay.schedules.options(**_told(given), paused=paused).create(target, id, *values)
        click.echo(f"created {schedule.id}: {_next(schedule.describe())}")
        if alone(backstay):
            click.echo(LATER, err=True)


@command.command(name="preview")
@click.option("--cron", metavar="EXPRESSION", multiple=True, help="Five fields, or @hourly, @daily, @weekly.")
@click.option("--every", metavar="DURATION", multiple=True, help="An interval, like 15m, 6h or 1d.")
@click.option("--offset", metavar="DURATION", help="Shift --every: `--every 1h --offset 5m` fires at 5 past each hour.")
@click.option("--timezone", metavar="ZONE", help="The time zone of the cron expressions: Europe/Berlin. Default: UTC.")
@click.option("--count", metavar="N", type=click.IntRange(1, 100), default=10, show_default=True, help="Show N times.")
def preview(count: int, **given: Any) -> None:
    """Preview when a schedule would fire, without creating it: the next times in its time zone.

    \b
    Examples:
      dw schedule preview --cron '30 2 * * *' --timezone Europe/Berlin
      dw schedule preview --every 6h --offset 5m --count 3
    """
    from backstay.cli import format
    from backstay.kernel.features.schedule.preview import preview as previewed
    from backstay.kernel.features.schedule.spec import check
    from backstay.kernel.message import Refused
    from backstay.sdk.client.schedules import ScheduleOptions, spec_of

    with _durations():
        spec = spec_of(ScheduleOptions(**_told(given)))
    now = format.now()
    try:
        check(spec, now)
    except Refused as refusal:
        raise CliError(refusal.message) from None
    for fire in previewed(spec, "", 0, now, count):
        note = f"  {fire.note}" if fire.note else ""
        click.echo(f"{fire.local:%a %Y-%m-%d %H:%M:%S %z}  {format.ago(fire.at, now)}{note}")


@command.command(name="list")
@_place
@click.option(
    "--status", type=click.Choice(["active", "paused", "ended", "deleted"]), help="Only schedules with this status."
)
@click.option("--type", "type_", metavar="TYPE", help="Only schedules of this workflow type.")
@click.option(
    "--limit", metavar="N", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Show N schedules."
)
def listing(path: options.Place, namespace: str, status: str | None, type_: str | None, limit: int) -> None:
    """List schedules, newest first. Ended and deleted schedules are listed with --status ended and --status deleted.

    \b
    Examples:
      dw schedule list
      dw schedule list --status paused
    """
    from rich.table import Table

    from backstay.cli import format
    from backstay.cli.console import console
    from backstay.cli.reading import reader_of
    from backstay.protocol.schedules import ListSchedules

    with reader_of(path, namespace) as reader:
        asked = ListSchedules(namespace=namespace, status=status, workflow_type=type_, limit=limit)
        found = reader.ask(asked).schedules
    out = console()
    if not found:
        out.print("no schedules" + (" match" if status or type_ else " yet"), style="bright_black")
        return
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for name in ("ID", "TYPE", "WHEN"):
        table.add_column(name, overflow="fold")
    for name in ("STATUS", "NEXT", "FIRED", "SKIPPED", "RUNNING"):
        table.add_column(name, no_wrap=True)
    for schedule in found:
        fire = schedule.next_fire
        table.add_row(
            schedule.schedule_id,
            schedule.plan.action.workflow_type,
            _spec(schedule),
            schedule.status,
            "-" if fire is None else format.ago(fire.at, format.now()),
            str(schedule.fires_count),
            str(schedule.skipped_count),
            str(len(schedule.running)),
        )
    out.print(table)


@command.command(name="describe")
@_one
def describe(id: str, path: options.Place, namespace: str) -> None:
    """Show the definition of schedule ID, its next fire and its recent runs.

    \b
    Examples:
      dw schedule describe nightly
    """
    from rich.table import Table

    from backstay.cli import format
    from backstay.cli.console import console
    from backstay.cli.reading import reader_of
    from backstay.protocol.schedules import DescribeSchedule

    with reader_of(path, namespace) as reader:
        schedule = reader.ask(DescribeSchedule(schedule_id=id, namespace=namespace))
    plan = schedule.plan
    facts = [
        ("schedule", id),
        ("starts", f"{plan.action.workflow_type} on queue {plan.action.routing.queue}"),
        ("when", _spec(schedule)),
        ("status", schedule.status + (f": {plan.note}" if plan.note else "")),
        ("next", _next(schedule)),
        ("overlap", plan.overlap_policy),
        ("fired", f"{schedule.fires_count}" + _left(schedule)),
    ]
    if plan.jitter_seconds:
        facts.append(("jitter", f"up to {plan.jitter_seconds} s"))
    if schedule.skipped_count:
        reason = schedule.last_skip_reason or ""
        facts.append(("skipped", f"{schedule.skipped_count}, last because {SAID.get(reason, reason)}"))
    if schedule.failures_count:
        facts.append(("not started", f"{schedule.failures_count}"))
    if schedule.buffer:
        facts.append(("waiting", f"{len(schedule.buffer)} for the one that runs"))
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bright_black", no_wrap=True)
    table.add_column(overflow="fold")
    for name, fact in facts:
        table.add_row(name, fact)
    for started in reversed(schedule.recent):
        said = started.status or "running"
        table.add_row("started", f"{format.moment(started.started_at)}  {started.workflow_id}  {said}")
    console().print(table)


@command.command(name="update")
@_one
@_when
def update(id: str, path: options.Place, namespace: str, **given: Any) -> None:
    """Change the given fields of schedule ID.

    \b
    Examples:
      dw schedule update nightly --cron '0 3 * * *'
      dw schedule update poller --every 5m --overlap allow_all
    """
    changes = _told(given)
    if not changes:
        raise CliError("nothing to change; name an option, for example --cron '0 3 * * *'")
    with opened(path, namespace) as backstay, _durations():
        schedule = backstay.schedules.handle(id)
        schedule.update(**changes)
        click.echo(f"updated {id}: {_next(schedule.describe())}")


@command.command(name="pause")
@_one
@click.option("--note", metavar="TEXT", help="The reason; it is recorded.")
def pause(id: str, path: options.Place, namespace: str, note: str | None) -> None:
    """Pause schedule ID until it is resumed. Runs that it has started continue.

    \b
    Examples:
      dw schedule pause nightly --note "the warehouse is closed"
    """
    with opened(path, namespace) as backstay:
        backstay.schedules.handle(id).pause(note)
        click.echo(f"paused {id}; dw schedule resume {id} resumes it")


@command.command(name="resume")
@_one
@click.option("--note", metavar="TEXT", help="The reason; it is recorded.")
def resume(id: str, path: options.Place, namespace: str, note: str | None) -> None:
    """Resume schedule ID from now on. To start missed occurrences, use dw schedule backfill.

    \b
    Examples:
      dw schedule resume nightly
    """
    with opened(path, namespace) as backstay:
        schedule = backstay.schedules.handle(id)
        schedule.resume(note)
        click.echo(f"resumed {id}: {_next(schedule.describe())}")
        if alone(backstay):
            click.echo(LATER, err=True)


@command.command(name="trigger")
@_one
@click.option(
    "--overlap", type=click.Choice(OVERLAPS), help="Overlap policy of this command. Default: that of the schedule."
)
def trigger(id: str, path: options.Place, namespace: str, overlap: Any) -> None:
    """Fire schedule ID once, now.

    \b
    Examples:
      dw schedule trigger nightly
      dw schedule trigger nightly --overlap allow_all
    """
    with opened(path, namespace) as backstay:
        fired = backstay.schedules.handle(id).trigger(overlap=overlap)
        click.echo(_fired(fired))
        if alone(backstay) and fired.workflow_id is not None:
            click.echo("no engine runs this database now; it runs when one starts (dw dev FILE)", err=True)


@command.command(name="backfill")
@_one
@click.argument("start", metavar="FROM")
@click.argument("end", metavar="TO")
@click.option(
    "--overlap", type=click.Choice(OVERLAPS), help="Overlap policy of this command. Default: that of the schedule."
)
def backfill(id: str, path: options.Place, namespace: str, start: str, end: str, overlap: Any) -> None:
    """Fire schedule ID for every occurrence from FROM until before TO. Times without a zone are in the zone of this
    machine.

    \b
    Examples:
      dw schedule backfill nightly 2027-01-01 2027-01-08 --overlap allow_all
      dw schedule backfill poller 2027-01-01T06:00Z 2027-01-01T12:00Z
    """
    between = _time(start), _time(end)
    with opened(path, namespace) as backstay:
        fired = backstay.schedules.handle(id).backfill(*between, overlap=overlap)
        for one in fired:
            click.echo(_fired(one))
        started = sum(one.workflow_id is not None for one in fired)
        click.echo(f"{started} started, {len(fired) - started} not", err=True)


@command.command(name="history")
@_one
@click.option("--after", metavar="N", type=click.IntRange(0), default=0, help="Only events after number N.")
@click.option(
    "--limit", metavar="N", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Show N events."
)
def history(id: str, path: options.Place, namespace: str, after: int, limit: int) -> None:
    """Show the history of schedule ID, even after it was deleted.

    \b
    Examples:
      dw schedule history nightly
      dw schedule history nightly --after 100
    """
    from backstay.cli import format
    from backstay.cli.reading import reader_of
    from backstay.kernel.features.schedule.records import ALL_STARTED, ScheduleDeleted
    from backstay.protocol.schedules import GetScheduleHistory

    with reader_of(path, namespace) as reader:
        found = reader.ask(GetScheduleHistory(schedule_id=id, namespace=namespace, after=after, limit=limit))
    for event in found.events:
        about: Any = event.entry.event
        more = [getattr(about, name, None) for name in ("workflow_instance_id", "status", "reason", "note")]
        ended = isinstance(about, ScheduleDeleted) and about.reason == ALL_STARTED  # no user has deleted that one
        kind = "Ended" if ended else event.entry.type.removeprefix("Schedule")
        said = printable(" ".join(str(one) for one in more if one))
        click.echo(f"{event.sequence:>5}  {format.moment(event.entry.at)}  {kind:<16}  {said}".rstrip())
    if found.more:
        click.echo(f"more: dw schedule history {id} --after {found.events[-1].sequence}", err=True)


@command.command(name="delete")
@_one
def delete(id: str, path: options.Place, namespace: str) -> None:
    """Delete schedule ID. Runs that it has started continue, and its history stays.

    \b
    Examples:
      dw schedule delete nightly
    """
    with opened(path, namespace) as backstay:
        backstay.schedules.handle(id).delete()
        click.echo(f"deleted {id}")


# -- output


def _spec(schedule: Schedule) -> str:
    from backstay.cli import format
    from backstay.kernel.features.schedule.spec import duration

    spec = schedule.plan.spec
    parts = [f"{expression} ({spec.timezone})" for expression in spec.cron_expressions]
    for interval in spec.intervals:
        later = f" + {format.span(duration(interval.offset))}" if interval.offset else ""
        parts.append(f"every {format.span(duration(interval.every))}{later}")
    return ", ".join(parts)


def _next(schedule: Schedule) -> str:
    from backstay.cli import format

    fire = schedule.next_fire
    if fire is None:
        return "paused" if schedule.status == "paused" else "never"
    return f"next at {format.moment(fire.at)} ({format.ago(fire.at, format.now())})"


def _left(schedule: Schedule) -> str:
    left = schedule.remaining_actions
    return "" if left is None else f", {left} to go"


def _fired(fired: FiredOccurrence) -> str:
    from backstay.cli import format

    if fired.workflow_id is not None:
        return f"started {fired.workflow_id} (run {fired.run_id})"
    what = format.moment(fired.occurrence)
    if fired.outcome == "buffered":
        return f"{what}: waits for the running workflow to end"
    return f"{what}: not started, {SAID.get(fired.reason or '', fired.reason)}"


def _time(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise CliError(f"{text!r} is not a time; write 2027-01-31, 2027-01-31T06:00 or 2027-01-31T06:00Z") from None
    return at if at.tzinfo is not None else at.astimezone()


@contextmanager
def _durations() -> Generator[None]:
    """Durations that cannot be read are the caller's mistake."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise CliError(str(error)) from None
