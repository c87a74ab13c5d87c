"""`dw token`: credentials for a server, made and taken away while it runs. Only hashes of them are stored."""

from __future__ import annotations

from typing import Any

import click

from backstay.cli import options
from backstay.cli.problems import Missing, Problem


@click.group(name="token")
def command() -> None:
    """Make, list and revoke tokens of a server.

    A server that runs on the database takes notice within a second.

    \b
    Examples:
      dw token create --role worker --note "billing workers"
      dw token list
      dw token revoke 01J9ZK3Y8Q5T4W6X7V8B9N0M1P
    """


@command.command(name="create")
@click.option(
    "--role", type=click.Choice(["worker", "operator", "admin"]), required=True, help="What the token may do."
)
@click.option("--namespace", metavar="NAME", help="The only namespace it opens. Default: every one.")
@click.option("--note", metavar="TEXT", help="What it is for.")
@options.database
def create(role: Any, namespace: str | None, note: str | None, path: str) -> None:
    """Make a token and print it, once."""
    from backstay.cli.reading import Reader
    from backstay.server.namespaces import checked_name
    from backstay.server.problems import Problem as Refusal
    from backstay.server.tokens import minted

    try:
        place = None if namespace is None else checked_name(namespace)
    except Refusal as refusal:
        raise Problem(refusal.message) from None
    with Reader(path) as reader:
        world = reader.world
        made, secret = minted(world.ids.ulid(), role, world.now(), place, note)
        _keep(reader, made.id, made)
    click.echo(f"{made.id} ({role}{'' if place is None else f', namespace {place}'}); shown once:", err=True)
    click.echo(secret)


@command.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@options.database
def listing(path: str, as_json: bool) -> None:
    """The tokens of a database; never their secrets."""
    import msgspec

    from backstay.cli.reading import Reader
    from backstay.server.tokens import shown

    with Reader(path) as reader:
        for token in _all(reader):
            view = shown(token)
            if as_json:
                click.echo(msgspec.json.encode(view).decode())
            else:
                place = view["namespace"] or "every namespace"
                click.echo(f"{view['token_id']}  {view['role']:8}  {place}  {view['created_at']}  {view['note'] or ''}")


@command.command(name="revoke")
@click.argument("id")
@options.database
def revoke(id: str, path: str) -> None:
    """Take token ID away: it opens nothing any more."""
    from backstay.cli.reading import Reader

    with Reader(path) as reader:
        if all(token.id != id for token in _all(reader)):
            raise Missing(f"there is no token {id}; dw token list shows those there are")
        _keep(reader, id, None)
    click.echo(f"{id}: revoked")


def _all(reader: Any) -> list[Any]:
    import msgspec

    from backstay.server.tokens import KIND, Token

    return [msgspec.json.decode(entry.body, type=Token) for entry in reader.get(reader.store.kept(KIND)) if entry.body]


def _keep(reader: Any, id: str, token: Any) -> None:
    import msgspec

    from backstay.cli.problems import told
    from backstay.server.tokens import KIND
    from backstay.store import Entry

    failed: list[Any] = []
    with told():
        reader.store.keep(Entry(KIND, "", id, None if token is None else msgspec.json.encode(token)), failed.append)
        if failed and failed[0] is not None:
            raise failed[0]
