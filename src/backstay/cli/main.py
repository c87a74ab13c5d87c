"""The `dw` command: finds the subcommand, and reports every mistake in one line.

A mistake of the caller ends with exit code 2, something that does not exist with 1. A traceback is a bug of ours.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

import click

from backstay.cli.plain_text import printable

COMMANDS = {
    "dev": "backstay.cli.dev",
    "demo": "backstay.cli.demo",
    "start": "backstay.cli.start",
    "list": "backstay.cli.listing",
    "overview": "backstay.cli.overview",
    "queues": "backstay.cli.overview:queues",
    "describe": "backstay.cli.describe",
    "why": "backstay.cli.why",
    "history": "backstay.cli.history",
    "export": "backstay.cli.export",
    "debug": "backstay.cli.debug",
    "export verify": "backstay.cli.bundle:verify",
    "import": "backstay.cli.bundle:import_",
    "signal": "backstay.cli.messages:signal",
    "update": "backstay.cli.messages:update",
    "query": "backstay.cli.messages:query",
    "audit": "backstay.cli.audit",
    "bulk": "backstay.cli.bulk",
    "nodes": "backstay.cli.nodes",
    "node": "backstay.cli.nodes:node",
    "record": "backstay.cli.record",
    "replay": "backstay.cli.replay",
    "doctor": "backstay.cli.doctor.command",
    "repair-pass": "backstay.cli.repair_pass",
    "schedule": "backstay.cli.schedule",
    "server": "backstay.cli.server",
    "store": "backstay.cli.store",
    "system": "backstay.cli.projections",
    "rebuild-projections": "backstay.cli.projections:rebuild",
    "workflow:v2:history-export": "backstay.cli.export",
    "workflow:v2:rebuild-projections": "backstay.cli.projections:rebuild",
    "workflow:v2:repair-pass": "backstay.cli.repair_pass",
    "system:operator-metrics": "backstay.cli.system:operator_metrics",
    "token": "backstay.cli.token",
    "verdict": "backstay.cli.verdict",
    "worker": "backstay.cli.worker",
}

OPERATOR = "operator commands"
"""Stands for the commands that are made from their declarations."""

SECTIONS = {
    "Run and develop": ["demo", "dev", "start", "worker"],
    "Judge code": ["replay", "record", "verdict"],
    "Inspect": [
        "list",
        "overview",
        "queues",
        "describe",
        "why",
        "history",
        "debug",
        "audit",
        "export",
        "export verify",
    ],
    "Act": ["signal", "update", "query", OPERATOR, "bulk", "schedule"],
    "Operate": ["doctor", "system", "repair-pass", "rebuild-projections", "store", "import"],
    "Serve": ["server", "nodes", "node", "token"],
}
"""The commands as `dw --help` shows them. The published names of commands, those with a colon, are hidden but work."""


def sections() -> dict[str, list[str]]:
    """The sections with the commands that are made from their declarations."""
    return {
        title: [shown for name in names for shown in (_operator_commands() if name == OPERATOR else [name])]
        for title, names in SECTIONS.items()
    }


class CommandGroup(click.Group):
    """Imports a command's module when the command is used."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in sections().items():
            commands = {name: self.get_command(ctx, name) for name in names}
            lines = [(name, command.get_short_help_str(500)) for name, command in commands.items() if command]
            with formatter.section(title):
                formatter.write_dl(lines)

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = list(COMMANDS)
        after = names.index("query") + 1
        return [*names[:after], *_operator_commands(), *names[after:]]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        where = COMMANDS.get(cmd_name)
        if where is None:
            return _operator_commands().get(cmd_name)
        module, _, name = where.partition(":")
        return getattr(import_module(module), name or "command")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """A command may have two words, such as `export verify`; a workflow of that name is exported by its first."""
        both = " ".join(args[:2])
        if both in COMMANDS and len(args) > 2:
            return both, self.get_command(ctx, both), args[2:]
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, ValueError):  # a test's or a notebook's stream cannot be changed
                stream.reconfigure(errors="replace")  # type: ignore[union-attr]
        try:
            code = super().main(*args, standalone_mode=False, **extra)
        except click.UsageError as mistake:
            where = "dw" if mistake.ctx is None else mistake.ctx.command_path
            click.echo(f"{where}: {printable(_sentence(mistake.format_message()))} (see {where} --help)", err=True)
            sys.exit(2)
        except click.ClickException as problem:
            click.echo(f"dw: {printable(problem.format_message())}", err=True)
            sys.exit(problem.exit_code)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(130)
        sys.exit(code if isinstance(code, int) else 0)


def _operator_commands() -> dict[str, click.Command]:
    from backstay.cli import lifecycle

    return lifecycle.COMMANDS


def _sentence(message: str) -> str:
    return " ".join(message.split()).rstrip(".")


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from backstay import __version__

        click.echo(f"dw, Backstay {__version__}")
        ctx.exit()


@click.group(cls=CommandGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
@click.pass_context
def dw(ctx: click.Context) -> None:
    """Backstay: durable workflows for Python.

    \b
    Write shop.py, then:
      dw dev shop.py                          run it, reload on each save
      dw start shop.py:order o-1 '"book"'     start a workflow
      dw signal o-1 approve '"ann"'           send a signal
      dw history o-1                          show its history

    Commands work on the server named by --server or DW_SERVER; without one on the database named by --db, else by DW_DB,
    else on backstay.db in this directory. `backstay` is the same command as `dw`.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> None:
    dw(prog_name="dw")


if __name__ == "__main__":
    main()
