"""`dw signal`, `dw update`, `dw query`: talk to a running workflow.

Signals and updates are on disk when they are accepted; the engine of the database applies them. A query is answered by the
workflow's code, so this process needs the file it is in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from backstay.cli import options
from backstay.cli.problems import CliError, Unsuccessful, as_problems, waiting_for

if TYPE_CHECKING:
    from backstay import Client

F = TypeVar("F", bound=Callable[..., Any])

LATER = "no engine runs this database now; the message is applied when one starts (dw dev FILE)"


def _app(help: str) -> Callable[[F], F]:
    return click.option("--app", metavar="FILE", help=help)


def parsed(args: tuple[str, ...], where: str) -> list[Any]:
    """Parse arguments as JSON; one that looks like an option is a mistake."""
    for text in args:
        if text.startswith("--"):
            raise CliError(f"{where} has no option {text}; see {where} --help")
    return [_parsed(number, text) for number, text in enumerate(args, 1)]


def _parsed(number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise CliError(
            f"argument {number} is not JSON: {text!r}; text needs quotes, for example '\"{text}\"'"
        ) from None


@contextmanager
def opened(path: options.Place, namespace: str, app: str | None = None) -> Generator[Client]:
    """A client of the database or server that runs no tasks; with a file, its code answers queries."""
    if isinstance(path, options.ServerAt):
        from backstay.cli.reading import client_of

        with as_problems(), client_of(path, namespace) as client, waiting_for(path.url):
            yield client
        return
    from backstay import Backstay
    from backstay.cli.loading import load

    options.existing(path)
    if app is None:
        with as_problems(), Backstay(path, namespace=namespace, queues=(), client_only=True) as backstay:
            yield backstay
        return
    program = load(Path(app))
    with (
        as_problems(),
        Backstay(
            path,
            program.things,
            namespace=namespace,
            queues=program.queues,
            types=program.types,
            guard="off",  # loading has checked already
            client_only=True,
        ) as backstay,
    ):
        yield backstay


def alone(client: Client) -> bool:
    """Whether no process runs the engine of the database, so that the message waits there."""
    from backstay import Backstay

    return isinstance(client, Backstay) and not client.has_engine()


def _shown(value: Any) -> str:
    import msgspec

    from backstay.codec.to_plain import plainly

    return msgspec.json.encode(plainly(value)).decode()


# A negative number is an argument of the handler, not an option of ours.
@click.command(name="signal", context_settings={"ignore_unknown_options": True})
@click.argument("id")
@click.argument("name")
@click.argument("args", nargs=-1, metavar="[JSON ARGS]...")
@options.place
@options.namespace
@click.option(
    "--request-id", metavar="TEXT", help="Idempotency key: a signal sent twice with the same id is applied once."
)
def signal(
    id: str, name: str, args: tuple[str, ...], path: options.Place, namespace: str, request_id: str | None
) -> None:
    """Send signal NAME to workflow ID. Each argument is JSON; text needs its quotes.

    The signal is on disk when this command returns. Its arguments are checked against the declaration of the workflow.

    \b
    Examples:
      dw signal expense-1 approve '"bob"'
      dw signal counter-1 add 3 '{"note": "thrice"}'
    """
    given = parsed(args, "dw signal")
    with opened(path, namespace) as backstay:
        client = backstay if request_id is None else backstay.options(request_id=request_id)
        client.handle(None, id).signal(name, *given)
        click.echo(f"{id}: signal {name} accepted")
        if alone(backstay):
            click.echo(LATER, err=True)


@click.command(name="update", context_settings={"ignore_unknown_options": True})
@click.argument("id")
@click.argument("name")
@click.argument("args", nargs=-1, metavar="[JSON ARGS]...")
@options.place
@options.namespace
@_app("The file with the workflow's code; its validators check the update before it is accepted.")
@click.option(
    "--wait/--no-wait",
    default=True,
    help="Wait for the result of the handler (the default), or return once the update is accepted.",
)
@click.option("--timeout", metavar="SECONDS", type=float, default=30, show_default=True, help="Seconds to wait.")
@click.option(
    "--request-id", metavar="TEXT", help="Idempotency key: an update sent twice with the same id is applied once."
)
def update(
    id: str,
    name: str,
    args: tuple[str, ...],
    path: options.Place,
    namespace: str,
    app: str | None,
    wait: bool,
    timeout: float,
    request_id: str | None,
) -> None:
    """Send update NAME to workflow ID and print what its handler returns, as JSON.

    An accepted update is on disk, and the engine of the database applies it exactly once. With --no-wait, or when no
    engine runs, the command prints the id of the update. An update with a validator needs --app, whose code validates
    it. With a server, a worker validates it.

    \b
    Examples:
      dw update expense-1 amend 3900 --app examples/approval.py
      dw update expense-1 amend 3900 --no-wait
    """
    from backstay.sdk.errors import UpdateFailed

    given = parsed(args, "dw update")
    with opened(path, namespace, app) as backstay:
        client = backstay if request_id is None else backstay.options(request_id=request_id)
        submitted = client.handle(None, id).submit(name, *given)
        click.echo(f"{id}: update {name} accepted ({submitted.id})", err=wait)
        if alone(backstay):
            click.echo(LATER, err=True)
        elif wait:
            try:
                click.echo(_shown(submitted.result(timeout=timeout)))
            except UpdateFailed as failed:
                raise Unsuccessful(str(failed)) from None
            except TimeoutError:
                raise Unsuccessful(f"update {name} was accepted and has not been applied in {timeout:g} s") from None


@click.command(name="query", context_settings={"ignore_unknown_options": True})
@click.argument("id")
@click.argument("name")
@click.argument("args", nargs=-1, metavar="[JSON ARGS]...")
@options.place
@options.namespace
@_app("The file with the workflow's code, which computes the answer.")
@click.option("--run", "run_id", metavar="RUN_ID", help="Use an earlier run of ID.")
def query(
    id: str, name: str, args: tuple[str, ...], path: options.Place, namespace: str, app: str | None, run_id: str | None
) -> None:
    """Ask workflow ID the query NAME and print its answer, as JSON. Nothing is changed or recorded.

    This command replays the workflow's code from the database and calls the query, so it needs --app. With a server, a
    worker answers. Closed runs answer too.

    \b
    Examples:
      dw query expense-1 status --app examples/approval.py
      dw query expense-1 status --app examples/approval.py --run 01J8...
    """
    given = parsed(args, "dw query")
    if app is None and not isinstance(path, options.ServerAt):
        raise CliError("a query runs the workflow's code; name its file with --app FILE")
    with opened(path, namespace, app) as backstay:
        handle = backstay.handle(None, id)
        asked = handle if run_id is None else handle.of_run(run_id)
        click.echo(_shown(asked.query(name, *given)))
