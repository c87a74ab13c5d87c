"""`dw audit`: commands and changes with their callers, newest first."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import click

from backstay.cli import options
from backstay.cli.control import asked
from backstay.cli.plain_text import one_line
from backstay.cli.problems import CliError


@click.command(name="audit")
@options.place
@options.namespace
@click.option(
    "--type",
    "command_type",
    metavar="TYPE",
    help="Only commands of this type: start, signal, cancel, token.create, ...",
)
@click.option("--status", type=click.Choice(["accepted", "rejected"]), help="Only commands with this status.")
@click.option("--id", "workflow_id", metavar="ID", help="Only commands to this workflow or schedule.")
@click.option("--token-id", metavar="ID", help="Only commands by this token.")
@click.option("--caller", metavar="LABEL", help="Only callers with this label.")
@click.option("--from", "since", metavar="TIME", help="Only from this time on, such as 2026-01-31T12:00:00Z.")
@click.option("--to", "until", metavar="TIME", help="Only before this time.")
@click.option(
    "--no-automatic-starts",
    "automatic_starts",
    flag_value="0",
    help="Leave out starts by schedules and workflows.",
)
@click.option(
    "--limit", metavar="N", type=click.IntRange(1, 200), default=50, show_default=True, help="Show N entries."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def command(path: options.Place, namespace: str, limit: int, as_json: bool, **filters: str | None) -> None:
    """Show the audit: commands to workflows and schedules, changes of tokens, sessions and namespaces, bulk operations.

    \b
    Examples:
      dw audit
      dw audit --no-automatic-starts
      dw audit --id order-42
      dw audit --type cancel --from 2026-01-31T00:00:00Z
      dw audit --token-id 01J9ZK3Y8Q5T4W6X7V8B9N0M1P --json
    """
    given = {
        {"since": "from", "until": "to"}.get(name, name): value for name, value in filters.items() if value is not None
    }
    if isinstance(path, options.ServerAt):
        query = urlencode(given | {"page_size": str(limit)})
        answer = asked(path, "GET", f"/api/audit?{query}", namespace=namespace)
        entries, more = answer["entries"], answer["next_page_token"] is not None
    else:
        entries, more = _read(path, namespace, given, limit)
    for entry in entries:
        click.echo(json.dumps(entry) if as_json else one_line(_line(entry)))
    if not entries and not as_json:
        click.echo("no commands" + (" match" if given else " yet"), err=True)
    if more and not as_json:
        click.echo("there is more; narrow it down with --from, --to, --id or --type", err=True)


def _read(path: str, namespace: str, given: dict[str, str], limit: int) -> tuple[list[dict[str, Any]], bool]:
    import msgspec

    from backstay.cli.reading import StoreReader
    from backstay.server.operators.audit import AuditFilter, audit_page, moment
    from backstay.server.operators.system_actions import KIND, SystemAction

    times: dict[str, int] = {}
    for name, field in (("from", "since"), ("to", "until")):
        if name in given:
            try:
                times[field] = moment(given[name])
            except ValueError:
                raise CliError(f"--{name} must be a time such as 2026-01-31T12:00:00Z") from None
    wanted: dict[str, Any] = {name: value for name, value in given.items() if name not in ("from", "to")}
    wanted["automatic_starts"] = wanted.pop("automatic_starts", "1") == "1"
    with StoreReader(path) as reader:
        kept = [entry.body for entry in reader.get(reader.store.kept(KIND)) if entry.body]
        actions = [msgspec.json.decode(body, type=SystemAction) for body in kept]
        actions.sort(key=lambda action: (action.at, action.id), reverse=True)
        where = AuditFilter(namespace=namespace, **times, **wanted)
        page = reader.get(audit_page(reader.store, actions, where, None, limit))
    return page.entries, page.token is not None


def _line(entry: dict[str, Any]) -> str:
    target = entry.get("workflow_id") or entry.get("schedule_id") or entry.get("target_name") or ""
    name = entry.get("target_name")
    what = f"{entry['command_type']} {name}" if name and name != target else entry["command_type"]
    outcome = entry.get("rejection_reason") or entry.get("outcome") or entry["status"]
    at = (entry.get("recorded_at") or "")[:19].replace("T", " ")
    return f"{at}  {what:24}  {target:24}  {outcome:24}  {_who(entry)}".rstrip()


def _who(entry: dict[str, Any]) -> str:
    process = entry.get("process_id")
    place = entry.get("address") or (f"{entry.get('program')} {process} on {entry.get('host')}" if process else None)
    said = [entry.get("caller_label"), entry.get("token_id"), place]
    return f"{entry['source']}: {', '.join(part for part in said if part)}" if any(said) else entry["source"]
