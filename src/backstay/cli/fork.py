"""The output of `dw fork` and `dw rewind`: what they keep, what they may do again, and the new workflow or run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from backstay.cli.plain_text import printable
from backstay.cli.problems import CliError
from backstay.kernel.features.fork import ForkPlan

DRY_RUN: Callable[[Any], Any] = click.option(
    "--dry-run", is_flag=True, help="Print what would be kept and what would be done again, and change nothing."
)

NOTHING = "nothing"
"""The outcome of a dry run."""


def show_fork(handle: Any, fields: dict[str, Any]) -> str:
    """Fork the run of a handle, or print the plan of it."""
    if _shown_only(handle, fields):
        return NOTHING
    forked = handle.fork(
        fields["at"], new_id=fields["new_id"], set=_results(fields), code=_code(fields), reason=fields["reason"]
    )
    click.echo(f"{handle.id}: forked as {forked.id} (run {forked.run_id})")
    return "forked"


def show_rewind(handle: Any, fields: dict[str, Any]) -> str:
    """Rewind the run of a handle, or print the plan of it."""
    if _shown_only(handle, fields):
        return NOTHING
    went_on = handle.rewind(fields["at"], set=_results(fields), code=_code(fields), reason=fields["reason"])
    click.echo(f"{handle.id}: rewound; it goes on as run {went_on.run_id}")
    return "rewound"


def _shown_only(handle: Any, fields: dict[str, Any]) -> bool:
    if not fields["dry_run"]:
        return False
    plan: ForkPlan = handle.plan_fork(fields["at"], set=_results(fields))
    events = "1 event" if plan.kept_events == 1 else f"{plan.kept_events} events"
    click.echo(f"{handle.id}: keeps {events} of run {plan.run_id}, up to event {plan.through_event}")
    if not plan.repeats:
        click.echo("nothing that the run has done would be done again")
        return True
    click.echo("may be done again:")
    for effect in plan.repeats:
        click.echo(
            printable(f"  step {effect.step}  {effect.kind} {effect.type}  {effect.outcome}  {effect.idempotency_key}")
        )
    return True


def _code(fields: dict[str, Any]) -> Any:
    return fields["code"] or "current"


def _results(fields: dict[str, Any]) -> dict[Any, Any] | None:
    text = fields["set"]
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise CliError(f'--set is a JSON object of results by step, such as \'{{"3": "ok"}}\', not {text!r}')
    return found  # pyright: ignore[reportUnknownVariableType]
