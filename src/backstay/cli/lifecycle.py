"""`dw cancel`, `dw pause`, `dw retry-now` and the other operator commands, made from their declarations.

Each is a durable command: it is on disk when it returns, with its reason, and shows in the history.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from backstay.cli import options
from backstay.cli.fork import DRY_RUN, show_fork, show_rewind
from backstay.cli.repair import show_repair
from backstay.kernel.features.fork import Fork, Rewind
from backstay.kernel.features.repair import Repair
from backstay.kernel.operator_command import OperatorCommand
from backstay.kernel.operators import OPERATOR_COMMANDS

Send = Callable[[Any, dict[str, Any]], str]
"""Sends a command by the handle of its workflow, with its fields; returns its outcome."""

SHOWN: dict[str, Send] = {
    Repair.command_type: show_repair,
    Fork.command_type: show_fork,
    Rewind.command_type: show_rewind,
}
"""Commands that print more than their outcome."""

MORE_OPTIONS: dict[str, tuple[Callable[[Any], Any], ...]] = {
    Fork.command_type: (DRY_RUN,),
    Rewind.command_type: (DRY_RUN,),
}
"""Their options beside the fields of the command."""


def _command(command: OperatorCommand) -> click.Command:
    def act(id: str, path: options.Place, namespace: str, run_id: str | None = None, **fields: Any) -> None:
        from backstay.cli.messages import alone, opened

        with opened(path, namespace) as backstay:
            handle = backstay.handle(None, id) if run_id is None else backstay.handle(None, id).of_run(run_id)
            send = SHOWN.get(command.name)
            if send is not None:
                outcome = send(handle, fields)
            else:
                outcome = handle.command(command.name, **fields)
                click.echo(f"{id}: {command.outcomes[outcome].words if outcome in command.outcomes else outcome}")
            goes_on = outcome in command.outcomes and command.outcomes[outcome].goes_on
            if goes_on and alone(backstay):
                click.echo("no engine runs this database now; the run goes on when one starts (dw dev FILE)", err=True)

    decorated: Any = act
    own = [click.option(*field.option, field.name, metavar=field.metavar, help=field.help) for field in command.fields]
    if not command.current_run:
        own.append(click.option("--run", "run_id", metavar="RUN_ID", help="Use an earlier run of ID."))
    for option in (*own, *MORE_OPTIONS.get(command.name, ()), options.namespace, options.place, click.argument("id")):
        decorated = option(decorated)
    return click.command(name=command.verb, help=_help(command))(decorated)


def _help(command: OperatorCommand) -> str:
    examples = [f"  dw {command.verb} {example}" for example in command.examples]
    return "\n\n".join([command.about("workflow ID"), command.more, "\n".join(["\b", "Examples:", *examples])])


COMMANDS = {command.verb: _command(command) for command in OPERATOR_COMMANDS.values()}
