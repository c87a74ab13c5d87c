"""`dw token`: credentials of a server, created and revoked while it runs. Only their hashes are stored."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from backstay.cli import options
from backstay.cli.control import asked
from backstay.cli.plain_text import one_line
from backstay.cli.problems import CliError, Missing


@click.group(name="token")
def command() -> None:
    """Create, list and revoke tokens of a server.

    With --db the command writes to the database, and a server that runs on it notices within a second. With --server or
    DW_SERVER the server does the work, which needs a token with the role admin.

    \b
    Examples:
      dw token create --role worker --note "billing workers"
      dw token create --role viewer --no-payloads --note "screen on the wall"
      dw token create --role worker --server http://127.0.0.1:8080 --token ADMIN
      dw token list
      dw token revoke 01J9ZK3Y8Q5T4W6X7V8B9N0M1P
    """


@command.command(name="create")
@click.option(
    "--role", type=click.Choice(["worker", "viewer", "operator", "admin"]), required=True, help="The role of the token."
)
@click.option("--no-payloads", is_flag=True, help="Hide arguments, results and memos from this viewer.")
@click.option("--namespace", metavar="NAME", help="Limit the token to this namespace. Default: all namespaces.")
@click.option("--note", metavar="TEXT", help="A note for readers, such as what the token is for.")
@options.place
def create(role: Any, no_payloads: bool, namespace: str | None, note: str | None, path: options.Place) -> None:
    """Create a token and print it. It cannot be shown again."""
    if no_payloads and role != "viewer":
        raise CliError(f"--no-payloads is for the role viewer; the role {role} needs payloads")
    payloads = not no_payloads
    if isinstance(path, options.ServerAt):
        made = asked(
            path, "POST", "/api/tokens", {"role": role, "namespace": namespace, "note": note, "payloads": payloads}
        )
        _show(made["token_id"], role, made["namespace"], made["token"])
        return
    from backstay.cli.reading import StoreReader
    from backstay.server.access.tokens import new_token
    from backstay.server.http.errors import HttpError
    from backstay.server.registries.namespaces import checked_name

    try:
        bound = None if namespace is None else checked_name(namespace)
    except HttpError as refusal:
        raise CliError(refusal.message) from None
    with StoreReader(path) as reader:
        world = reader.world
        token, secret = new_token(world.ids.ulid(), role, world.now(), bound, note, payloads=payloads)
        _keep(reader, token.id, token)
        _note(reader, "token.create", token.id, bound, role)
    _show(token.id, role, bound, secret)


def _show(id: str, role: str, namespace: str | None, secret: str) -> None:
    click.echo(f"{id} ({role}{'' if namespace is None else f', namespace {namespace}'}); shown once:", err=True)
    click.echo(secret)


@command.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@options.place
def listing(path: options.Place, as_json: bool) -> None:
    """List the tokens. Their secrets are never shown."""
    import msgspec

    for view in _views(path):
        if as_json:
            click.echo(msgspec.json.encode(view).decode())
        else:
            place = view["namespace"] or "every namespace"
            place += "" if view.get("payloads", True) else ", no payloads"
            line = f"{view['token_id']}  {view['role']:8}  {place}  {view['created_at']}  {view['note'] or ''}"
            click.echo(one_line(line))


def _views(path: options.Place) -> list[dict[str, Any]]:
    if isinstance(path, options.ServerAt):
        return asked(path, "GET", "/api/tokens")["tokens"]
    from backstay.cli.reading import StoreReader
    from backstay.server.access.tokens import shown

    with StoreReader(path) as reader:
        return [shown(token) for token in _all(reader)]


@command.command(name="revoke")
@click.argument("id")
@options.place
def revoke(id: str, path: options.Place) -> None:
    """Revoke token ID. The server refuses it from now on."""
    from backstay.cli.reading import StoreReader

    if isinstance(path, options.ServerAt):
        asked(path, "DELETE", f"/api/tokens/{quote(id, safe='')}")
        click.echo(f"{id}: revoked")
        return
    with StoreReader(path) as reader:
        revoked = next((token for token in _all(reader) if token.id == id), None)
        if revoked is None:
            raise Missing(f"there is no token {id}; dw token list shows all tokens")
        _keep(reader, id, None)
        _note(reader, "token.revoke", id, revoked.namespace, revoked.role)
    click.echo(f"{id}: revoked")


def _all(reader: Any) -> list[Any]:
    import msgspec

    from backstay.server.access.tokens import KIND, AccessToken

    return [
        msgspec.json.decode(entry.body, type=AccessToken) for entry in reader.get(reader.store.kept(KIND)) if entry.body
    ]


def _note(reader: Any, action: str, id: str, namespace: str | None, role: str) -> None:
    """Leave an entry for the audit."""
    from backstay.protocol.origin import of_process
    from backstay.server.operators.system_actions import KIND, SystemAction

    world = reader.world
    entry = SystemAction(
        id=world.ids.ulid(),
        at=world.now(),
        action=action,
        source="dw",
        target=id,
        namespace=namespace,
        details={"role": role},
        request=of_process()["request"],
    )
    _keep(reader, entry.id, entry, KIND)


def _keep(reader: Any, id: str, entry: Any, kind: str = "token") -> None:
    import msgspec

    from backstay.cli.problems import as_problems
    from backstay.store import RegistryEntry

    failed: list[Any] = []
    with as_problems():
        reader.store.keep(
            RegistryEntry(kind, "", id, None if entry is None else msgspec.json.encode(entry)), failed.append
        )
        if failed and failed[0] is not None:
            raise failed[0]
