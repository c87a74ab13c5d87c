"""`dw overview` and `dw queues`: items that need attention, figures, and waiting tasks."""

from __future__ import annotations

import json
from typing import Any

import click

from backstay.cli import options
from backstay.cli.control import asked
from backstay.kernel.spans import whole_span
from backstay.kernel.values import SECOND

WINDOWS = {"1h": "the last hour", "24h": "the last 24 hours", "7d": "the last 7 days"}
COLOURS = {"ok": "green", "info": "cyan", "warning": "yellow", "error": "red"}
TYPES = 10  # workflow types that are printed
QUEUES = 10

Answer = dict[str, Any]


@click.command(name="overview")
@options.place
@options.namespace
@click.option(
    "--window",
    type=click.Choice(list(WINDOWS)),
    default="24h",
    show_default=True,
    help="Show results of this time span.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON.")
@click.option("--check", is_flag=True, help="Exit with code 1 if something needs attention.")
@click.pass_context
def command(ctx: click.Context, path: options.Place, namespace: str, window: str, as_json: bool, check: bool) -> None:
    """Show what needs attention, how many runs are open, recent results and upcoming schedules.

    The first line says whether an engine runs the database; without one, no run moves.

    \b
    Examples:
      dw overview
      dw overview --window 1h --server http://127.0.0.1:8080
      dw overview --json | jq '.causes[].sentence'
      dw overview --check || send-an-alert
    """
    seen = overview_of(path, namespace, window)
    if as_json:
        click.echo(json.dumps(seen))
    else:
        _print(seen, window)
    if check and seen["verdict"]["needs_attention"]:
        ctx.exit(1)


def _print(seen: Answer, window: str) -> None:
    from rich.table import Table

    from backstay.cli.console import console

    out = console()
    verdict = seen["verdict"]
    out.print(verdict["sentence"], style=f"bold {COLOURS[verdict['status']]}", markup=False, highlight=False)
    for one in seen["causes"]:
        out.print(f"[{COLOURS[one['severity']]}]{one['name']:<16}[/] ", end="")
        out.print(one["sentence"], markup=False, highlight=False)
        action = one["action"]
        if action is not None:
            how = f": {action['command']}" if action.get("command") else ""
            out.print(f"{'':<16} {action['label']}{how}", style="bright_black", markup=False, highlight=False)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bright_black", no_wrap=True)
    table.add_column(overflow="fold")
    for name, fact in _facts(seen, window):
        table.add_row(name, fact)
    out.print(table)
    types = seen["types"]["busiest"][:TYPES]
    if types:
        out.print(_types(types))
    queues = [queue for queue in seen["queues"]["oldest_waiting"] if queue["backlog"]][:QUEUES]
    if queues:
        out.print(_queues(queues))


def overview_of(path: options.Place, namespace: str, window: str) -> Answer:
    """What `GET /api/overview` answers, of a server or of a database."""
    if isinstance(path, options.ServerAt):
        return asked(path, "GET", f"/api/overview?window={window}", namespace=namespace)
    import msgspec

    from backstay.cli.reading import StoreReader
    from backstay.server.operators.overview import overviews_of

    with StoreReader(path) as reader:
        return msgspec.to_builtins(reader.get(overviews_of(reader.node).read(namespace, window)))


def _facts(seen: Answer, window: str) -> list[tuple[str, str]]:
    stock, totals, schedules, wakes = seen["stock"], seen["totals"], seen["schedules"], seen["wakes"]
    states = [f"{runs} {state}" for state, runs in stock["states"].items() if runs]
    if stock["without_view"]:
        waited = stock.get("without_view_age_seconds")
        since = "" if waited is None else f" (the oldest for {whole_span(round(waited * SECOND))})"
        states.append(f"{stock['without_view']} not looked at yet{since}")
    facts = [] if seen["engine"] != "none" else [("engine", "none: no engine runs this database")]
    facts.append(("open runs", f"{stock['open']}" + (f": {', '.join(states)}" if states else "")))
    ended = f"{totals['started']} started, {totals['completed']} completed, {totals['failed']} failed"
    if totals["p50_ms"] is not None:
        rate = f"{totals['pass_rate']:.1%} passed" if totals["pass_rate"] is not None else ""
        ended += f" ({rate}; half took up to {_time(totals['p50_ms'])}, 95 % up to {_time(totals['p95_ms'])})"
    facts.append((WINDOWS[window], ended))
    proof = seen["certificate"]
    if proof is not None:
        facts.append(
            ("proof", f"{proof['stranded']} of {proof['open_runs']} open runs stranded, as of {proof['proven_at']}")
        )
    fleet = seen["fleet"]
    if fleet is not None:
        facts.append(("workers", f"{fleet['active']} active, {fleet['stale']} stale, on {fleet['queues']} queues"))
    facts.append(("queues", f"{seen['queues']['backlog']} tasks wait in {seen['queues']['count']} queues"))
    due = f"{schedules['due_next_hour']} due in the next hour, {schedules['overdue']} late"
    facts.append(("schedules", f"{schedules['active']} active, {schedules['paused']} paused, {due}"))
    more = "" if wakes["complete"] else f" (counted until {wakes['counted_until']})"
    facts.append(
        ("wakes", f"{wakes['next_hour']['runs']} in the next hour, {wakes['next_day']['runs']} in the next day{more}")
    )
    return facts


def _types(types: list[Answer]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bright_black")
    table.add_column("TYPE", overflow="fold")
    for name in ("STARTED", "COMPLETED", "FAILED", "PASSED", "P50", "P95"):
        table.add_column(name, no_wrap=True, justify="right")
    for one in types:
        rate = "-" if one["pass_rate"] is None else f"{one['pass_rate']:.1%}"
        counts = (str(one[name]) for name in ("started", "completed", "failed"))
        table.add_row(one["workflow_type"], *counts, rate, _time(one["p50_ms"]), _time(one["p95_ms"]))
    return table


def _queues(queues: list[Answer]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bright_black")
    table.add_column("QUEUE", overflow="fold")
    for name in ("WAITING", "OLDEST", "LEASED", "WORKERS"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("HELD BACK", overflow="fold")
    for one in queues:
        table.add_row(
            one["name"],
            str(one["backlog"]),
            "-" if one["oldest_age_seconds"] is None else _time(one["oldest_age_seconds"] * 1000),
            str(one["leased"]),
            str(one["workers"]),
            one["throttled_because"] or "",
        )
    return table


def _time(milliseconds: float | None) -> str:
    from backstay.cli.format import span

    return "-" if milliseconds is None else span(round(milliseconds * 1000))


@click.command(name="queues")
@click.argument("queue", required=False)
@options.place
@options.namespace
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON.")
def queues(queue: str | None, path: options.Place, namespace: str, as_json: bool) -> None:
    """Show task queues, or the tasks that wait in QUEUE, oldest first.

    \b
    Examples:
      dw queues
      dw queues warehouse --server http://127.0.0.1:8080
    """
    from backstay.cli.console import console

    if queue is not None:
        _waiting(queue, path, namespace, as_json)
        return
    found = _queue_rows(path, namespace)
    if as_json:
        click.echo(json.dumps(found))
    elif found:
        console().print(_queues(found))
    else:
        console().print("no queue has tasks or workers", style="bright_black")


def _queue_rows(path: options.Place, namespace: str) -> list[Answer]:
    """The queues as an overview has them."""
    if not isinstance(path, options.ServerAt):
        return overview_of(path, namespace, "1h")["queues"]["oldest_waiting"]
    rows: list[Answer] = []
    after: str | None = ""
    while after is not None:
        from urllib.parse import quote

        page = asked(path, "GET", f"/api/task-queues?after={quote(after)}", namespace=namespace)
        rows += [
            {
                "name": one["name"],
                "backlog": one["stats"]["approximate_backlog_count"],
                "oldest_age_seconds": one["stats"]["approximate_backlog_age_seconds"],
                "leased": sum(one["stats"][kind]["leased_count"] for kind in ("workflow_tasks", "activity_tasks")),
                "workers": one["workers"]["active"],
                "throttled_because": one["throttled_because"],
                "rates": one["rates"],
                "schedule_to_start": one["schedule_to_start"],
            }
            for one in page["task_queues"]
        ]
        after = page["next_after"]
    return rows


def _waiting(queue: str, path: options.Place, namespace: str, as_json: bool) -> None:
    from rich.table import Table

    from backstay.cli.console import console

    tasks = _waiting_tasks(queue, path, namespace)
    if as_json:
        click.echo(json.dumps(tasks))
        return
    if not tasks:
        console().print(f"nothing waits in queue {queue}", style="bright_black", markup=False)
        return
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for name in ("WORKFLOW", "TASK", "TYPE", "BUILD", "WAITING"):
        table.add_column(name, overflow="fold")
    for one in tasks:
        waited = _time(one["waiting_seconds"] * 1000)
        table.add_row(one["workflow_id"] or "?", one["task_type"], one["type"], one["build_id"] or "-", waited)
    console().print(table)


def _waiting_tasks(queue: str, path: options.Place, namespace: str) -> list[Answer]:
    """The first page of waiting tasks."""
    if isinstance(path, options.ServerAt):
        from urllib.parse import quote

        return asked(path, "GET", f"/api/task-queues/{quote(queue, safe='')}/tasks", namespace=namespace)["tasks"]
    from backstay.cli.format import now
    from backstay.cli.reading import StoreReader

    with StoreReader(path) as reader:
        today = now()
        found = reader.get(reader.store.waiting_page(namespace, queue, today, None, 100))
    return [
        {
            "workflow_id": one.workflow_id,
            "task_type": one.task.kind,
            "type": one.task.type,
            "build_id": one.task.routing.compatibility,
            "waiting_seconds": max(today - one.task.available_at, 0) / 1_000_000,
        }
        for one in found
    ]
