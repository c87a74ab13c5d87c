"""`dw nodes`, `dw node drain` and `dw node forget`: list the nodes of a database with their shards, and take one
out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, cast
from urllib.parse import quote

import click

from backstay.cli import options
from backstay.cli.control import asked
from backstay.cli.problems import CliError, Missing, Unsuccessful
from backstay.engine.cluster.gone_nodes import GoneNodeAnswer, told
from backstay.engine.cluster.node_views import NodeAnswer, NodesAnswer, NoSuchNode, all_nodes, find_gone, find_node

if TYPE_CHECKING:
    from backstay.cli.reading import StoreReader

LOOK = 0.2  # seconds between two looks at a node that drains
PATIENCE = 120.0  # seconds in which the shards of a node should have moved

Ask = Callable[[], NodesAnswer]


@click.command(name="nodes")
@options.place
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON.")
def command(path: options.Place, as_json: bool) -> None:
    """Show the nodes of a database: their shards, and which of them drain or are gone.

    A node that crashed is listed with the time of its last sign of life and the nodes that took its shards. It is
    listed until a node of the same name starts, `dw node forget` removes it, or a day has passed.

    \b
    Examples:
      dw nodes --server http://127.0.0.1:8080
      dw nodes --db postgresql://backstay@db.internal/prod
      dw nodes --json | jq '.nodes[] | select(.draining).name'
    """
    found = _nodes(path)
    if as_json:
        click.echo(json.dumps(found))
        return
    from rich.table import Table

    from backstay.cli.console import console

    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for name in ("NAME", "ID", "STATUS", "SHARDS", "WEIGHT", "RELEASE", "ADDRESS"):
        table.add_column(name, overflow="fold", justify="right" if name in ("SHARDS", "WEIGHT") else "left")
    for one in found["nodes"]:
        facts = (one["name"] or "?", one["id"], _status(one), str(one["shards"]), str(one["weight"]))
        table.add_row(*facts, one["version"] or "?", one["address"] or "-")
    out = console()
    out.print(table)
    for one in found["nodes"]:
        if one["note"] is not None:
            out.print(f"{one['name']}: {one['note']}", style="yellow", markup=False)
    for gone in found["gone"]:
        out.print(f"{told(gone)}; forget it with: dw node forget {gone['id']}", style="yellow", markup=False)
    if found["unowned_shards"]:
        missing = f"{found['unowned_shards']} of {found['shards']} shards have no owner: their workflows do not move"
        out.print(missing, style="red", markup=False)


@click.group()
def node() -> None:
    """Drain or forget one node of a database."""


@node.command()
@click.argument("name")
@options.place
@click.option("--wait", is_flag=True, help="Wait until the node owns no shards, and show the progress.")
@click.option("--undo", is_flag=True, help="Undo the drain: the node takes work again.")
def drain(name: str, path: options.Place, wait: bool, undo: bool) -> None:
    """Drain a node: it hands all its work to the other nodes.

    The node still serves callers, and its /api/ready reports that it is not ready. Stopping a drained node interrupts
    no work. SIGTERM alone drains too, faster. If no other node can take the work, the node keeps it.

    \b
    Examples:
      dw node drain box-7:4711 --wait --server http://127.0.0.1:8080
      dw node drain 3512977201347 --undo --db postgresql://backstay@db.internal/prod
    """
    chosen = _wish(path, name, not undo)
    called = f"{chosen['name']} ({chosen['id']})"
    click.echo(f"{called} {'takes work again' if undo else 'is asked to hand over its work'}")
    if wait and not undo:
        _wait(lambda: _nodes(path), chosen["id"], called)


@node.command()
@click.argument("name")
@options.place
def forget(name: str, path: options.Place) -> None:
    """Forget a node that is gone, by its id or name.

    For a node that crashed and will not come back. Without this command, `dw nodes`, health and metrics report it for a
    day.

    \b
    Examples:
      dw node forget box-7:4711 --server http://127.0.0.1:8080
      dw node forget 3512977201347 --db postgresql://backstay@db.internal/prod
    """
    for one in _forgotten(path, name):
        click.echo(f"{one['name']} ({one['id']}) is forgotten")


def _forgotten(path: options.Place, name: str) -> list[GoneNodeAnswer]:
    if isinstance(path, options.ServerAt):
        said = asked(path, "POST", f"/api/nodes/{quote(name, safe='')}/forget", {})
        return cast("list[GoneNodeAnswer]", said["forgotten"])
    from backstay.cli.reading import StoreReader
    from backstay.engine.cluster.gone_nodes import forget

    with StoreReader(path) as reader:
        try:
            matching = find_gone(_of_store(reader), name)
        except NoSuchNode as unknown:
            raise Missing(str(unknown)) from None
        reader.get(forget(reader.world, reader.store, [int(one["id"]) for one in matching]))
    return matching


def _wait(ask: Ask, id: str, called: str) -> None:
    deadline = time.monotonic() + PATIENCE
    left: int | None = None
    while True:
        found = next((one for one in ask()["nodes"] if one["id"] == id), None)
        if found is None:
            click.echo(f"{called} has ended")
            return
        if found["draining"] and found["shards"] != left:
            left = found["shards"]
            click.echo(f"{called} owns {left} shards" if left else f"{called} no longer owns shards")
        if found["draining"] and not left:
            return
        if found["note"] is not None:
            raise Unsuccessful(f"{called}: {found['note']}")
        if time.monotonic() > deadline:
            raise Unsuccessful(f"{called} still owns {found['shards']} shards after {PATIENCE:g} s; see its log")
        time.sleep(LOOK)


def _status(one: NodeAnswer) -> str:
    if one["status"] in ("silent", "gone"):
        return f"{one['status']} for {one['silent_seconds']:.0f} s"
    return f"{one['status']}, asked here" if one["this"] else one["status"]


def _nodes(path: options.Place) -> NodesAnswer:
    if isinstance(path, options.ServerAt):
        return cast("NodesAnswer", asked(path, "GET", "/api/nodes"))
    from backstay.cli.reading import StoreReader

    with StoreReader(path) as reader:
        return _of_store(reader)


def _of_store(reader: StoreReader) -> NodesAnswer:
    found = reader.get(all_nodes(reader.store, reader.world.now()))
    # A process that only reads a file is no node of it.
    found["nodes"] = [one for one in found["nodes"] if one["shards"] or not one["this"]]
    return found


def _wish(path: options.Place, name: str, draining: bool) -> NodeAnswer:
    if isinstance(path, options.ServerAt):
        verb = "drain" if draining else "resume"
        return cast("NodeAnswer", asked(path, "POST", f"/api/nodes/{quote(name, safe='')}/{verb}", {}))
    from backstay.cli.reading import StoreReader
    from backstay.engine.cluster.draining import wish

    with StoreReader(path) as reader:
        if reader.store.exclusive:
            raise CliError(
                "one process at a time owns a SQLite file; stop it, and another process that has the file open takes over"
            )
        try:
            found = find_node(_of_store(reader), name)
        except NoSuchNode as unknown:
            raise (CliError if unknown.ids else Missing)(str(unknown)) from None
        reader.get(wish(reader.world, reader.store, int(found["id"]), draining))
    return found
