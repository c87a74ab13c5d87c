"""`dw why`: the reason why a run does not move, what happens by itself, and the action that helps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from backstay.cli import options
from backstay.kernel.operators import OPERATOR_COMMANDS

if TYPE_CHECKING:
    from backstay.kernel.views.why import Why

COLOURS = {"info": "default", "good": "green", "warning": "yellow", "danger": "red", "paused": "cyan"}


@click.command(name="why")
@click.argument("id")
@click.option("--run", "run_id", metavar="RUN_ID", help="Use an earlier run of ID.")
@click.option(
    "--event", type=click.IntRange(min=1), metavar="N", help="Explain why event N of the history was recorded."
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@options.place
@options.namespace
def command(id: str, path: options.Place, namespace: str, run_id: str | None, event: int | None, as_json: bool) -> None:
    """Explain why workflow ID does not move: its wait, the deadline, and the action that helps.

    With --event, shows the chain of events that led to that event, back to a message from outside.

    \b
    Examples:
      dw why order-1
      dw why order-1 --event 12
      dw why order-1 --json
    """
    import msgspec

    from backstay.cli.console import console
    from backstay.cli.reading import reader_of
    from backstay.protocol.requests import ExplainWorkflow

    with reader_of(path, namespace) as reader:
        why = reader.ask(ExplainWorkflow(workflow_id=id, namespace=namespace, run_id=run_id, event=event))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(why)).decode())
        return
    out = console()
    out.print(f"{why.workflow_id}: {why.sentence}", style=COLOURS[why.tone], markup=False, highlight=False)
    for name, text in _lines(why):
        out.print(f"  {name:<10} {text}", markup=False, highlight=False)


def _lines(why: Why) -> list[tuple[str, str]]:
    from backstay.cli import format

    lines: list[tuple[str, str]] = []
    if why.by_itself is not None:
        lines.append(("by itself", why.by_itself))
    action = why.action
    if action is not None:
        how = action.reason if not action.allowed else _dw(action.verb, why.workflow_id)
        lines.append(("what helps", action.label + (f": {how}" if how else "")))
    lines += [
        ("because of" if place == 0 else "", _told(cause.sequence, cause.about, cause.outside))
        for place, cause in enumerate(why.chain)
    ]
    return [(name, format.shortened(text, 200)) for name, text in lines]


def _dw(name: str, id: str) -> str:
    command = OPERATOR_COMMANDS.get(name)
    return "" if command is None else f"dw {command.verb} {id}"


def _told(sequence: int, about: str, outside: str | None) -> str:
    return f"{sequence:>5}  {about}" + (f", from {outside}" if outside else "")
