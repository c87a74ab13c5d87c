"""`dw cancel`, `dw terminate`, `dw pause`, `dw unpause`, `dw retry-now`, `dw archive`: what an operator does to a run.

Each is a durable command: it is on disk when it returns, with its reason, and shows in the history.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from backstay.cli import options

F = TypeVar("F", bound=Callable[..., Any])

SAID = {
    "cancelled": "cancelled",
    "cancel_requested": "asked to stop; its code cleans up, and a second cancel closes it at once",
    "paused": "paused; what happens meanwhile is recorded, and dw unpause lets it go on",
    "pause_not_needed": "paused already",
    "unpaused": "goes on",
    "unpause_not_needed": "was not paused",
    "retry_dispatched": "its next attempt is due now",
    "retry_not_needed": "its next attempt is due already",
    "archived": "archived; its history stays",
    "archive_not_needed": "archived already",
}


def _asked(command: F) -> F:
    """The arguments that these commands share: the workflow, and the reason."""
    for option in (
        click.option("--reason", metavar="TEXT", help="Why; it is recorded."),
        options.namespace,
        options.place,
        click.argument("id"),
    ):
        command = option(command)
    return command


def _do(id: str, path: options.Place, namespace: str, act: Callable[[Any], str | None]) -> None:
    from backstay.cli.messages import alone, opened

    with opened(path, namespace) as backstay:
        outcome = act(backstay.handle(None, id))
        click.echo(f"{id}: {SAID.get(outcome or '', outcome)}")
        if outcome in ("cancel_requested", "unpaused", "retry_dispatched") and alone(backstay):
            click.echo("no engine runs this database now; the run goes on when one starts (dw dev FILE)", err=True)


@click.command(name="cancel")
@_asked
def cancel(id: str, path: options.Place, namespace: str, reason: str | None) -> None:
    """Ask workflow ID to stop.

    A workflow that handles cancellation gets to clean up until its deadline; any other is closed at once.

    \b
    Examples:
      dw cancel order-1
      dw cancel order-1 --reason "the customer changed her mind"
    """
    _do(id, path, namespace, lambda run: run.cancel(reason))


@click.command(name="terminate")
@_asked
def terminate(id: str, path: options.Place, namespace: str, reason: str | None) -> None:
    """Stop workflow ID at once, without asking its code.

    \b
    Examples:
      dw terminate order-1 --reason "started by mistake"
    """

    def act(run: Any) -> str:
        run.terminate(reason)
        return "terminated"

    _do(id, path, namespace, act)


@click.command(name="pause")
@_asked
def pause(id: str, path: options.Place, namespace: str, reason: str | None) -> None:
    """Hand out no more tasks of workflow ID. Results, timers and signals are recorded; deadlines go on.

    \b
    Examples:
      dw pause order-1 --reason "the warehouse is closed"
    """
    _do(id, path, namespace, lambda run: run.pause(reason))


@click.command(name="unpause")
@_asked
def unpause(id: str, path: options.Place, namespace: str, reason: str | None) -> None:
    """Let a paused workflow ID go on.

    \b
    Examples:
      dw unpause order-1
    """
    _do(id, path, namespace, lambda run: run.unpause(reason))


@click.command(name="retry-now")
@_asked
@click.option(
    "--activity", "activity", metavar="EXECUTION_ID", help="One activity of the run; otherwise all that wait."
)
def retry_now(id: str, path: options.Place, namespace: str, reason: str | None, activity: str | None) -> None:
    """Try the activities of workflow ID that wait for their next attempt again now.

    The number of attempts that are left stays as it is. `dw why ID` says which activity waits, and until when.

    \b
    Examples:
      dw retry-now order-1
      dw retry-now order-1 --reason "the carrier is back"
    """
    _do(id, path, namespace, lambda run: run.retry_now(activity, reason))


@click.command(name="archive")
@_asked
@click.option("--run", "run_id", metavar="RUN_ID", help="An earlier run of ID.")
def archive(id: str, path: options.Place, namespace: str, reason: str | None, run_id: str | None) -> None:
    """Mark a closed run of workflow ID as dealt with. Its history stays.

    \b
    Examples:
      dw archive order-1
      dw archive order-1 --run 01J8... --reason audited
    """
    _do(id, path, namespace, lambda run: run.archive(reason, run_id=run_id))
