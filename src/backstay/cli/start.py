"""`dw start`: start a workflow of a file, and with --wait stay until it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from backstay.cli import options
from backstay.cli.messages import parsed
from backstay.cli.problems import CliError, Unsuccessful, as_problems, waiting_for


# A negative number is an argument of the workflow, not an option of ours.
@click.command(name="start", context_settings={"ignore_unknown_options": True})
@click.argument("workflow", metavar="FILE:WORKFLOW")
@click.argument("id")
@click.argument("args", nargs=-1, metavar="[JSON ARGS]...")
@options.place
@options.namespace
@click.option("--wait", is_flag=True, help="Wait for the end and print the result as JSON.")
def command(workflow: str, id: str, args: tuple[str, ...], path: options.Place, namespace: str, wait: bool) -> None:
    """Start WORKFLOW of FILE under ID. Each argument is JSON; text needs its quotes.

    The start is on disk when this command returns. The engine of the database (`dw dev`, or your application) runs the
    workflow, now or when it starts. With --wait, and if no engine is running, this process is the engine until the
    workflow ends.

    \b
    Examples:
      dw start shop.py:order order-1
      dw start shop.py:order order-1 '"book"' 3
      dw start shop.py:order order-1 '{"sku": "book", "count": 3}' --wait
    """
    from backstay.cli.loading import load

    file, colon, name = workflow.rpartition(":")
    if not colon or not file or not name:
        raise CliError(f"{workflow!r} names no workflow; write FILE:WORKFLOW, for example shop.py:order")
    given = parsed(args, "dw start")
    program = load(Path(file))
    target = program.workflow(name)
    check_arguments(target, given)

    if isinstance(path, options.ServerAt):
        from backstay.cli.reading import client_of

        with as_problems(), client_of(path, namespace) as client:
            with waiting_for(path.url):
                handle = client.start(target, id, *given)
            click.echo(f"started {handle.id} (run {handle.run_id})", err=wait)
            if wait:
                _print_result(handle)
        return
    from backstay import Backstay

    things = program.things if wait else ()
    with (
        as_problems(),
        Backstay(
            path,
            things,
            namespace=namespace,
            queues=program.queues,
            types=program.types,
            guard="off",  # loading has checked already
            client_only=not wait,
        ) as backstay,
    ):
        handle = backstay.start(target, id, *given)
        click.echo(f"started {handle.id} (run {handle.run_id})", err=wait)
        if wait:
            if backstay.is_engine:
                click.echo("no engine runs this database; running it here", err=True)
            _print_result(handle)
        elif not backstay.has_engine():
            click.echo(f"no engine runs this database now; it runs when one starts (dw dev {file})", err=True)


def check_arguments(target: Any, given: list[Any]) -> None:
    """Refuse wrong arguments before anything is stored."""
    from backstay.sdk.author.workflow import definition_of

    try:
        definition_of(target).signature.pack_fitting(given, {})
    except TypeError as error:
        raise CliError(str(error)) from None


def _print_result(handle: Any) -> None:
    import msgspec

    from backstay.codec.to_plain import plainly
    from backstay.sdk.errors import WorkflowError

    try:
        result = handle.result()
    except WorkflowError as error:
        raise Unsuccessful(str(error)) from None
    click.echo(msgspec.json.encode(plainly(result)).decode())
