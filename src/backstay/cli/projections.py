"""`dw system rebuild-projections` and `dw system liveness`: stored views, and the proof that nothing is stranded."""

from __future__ import annotations

import json
from typing import Any

import click

from backstay.cli import options
from backstay.cli.control import asked
from backstay.cli.problems import Missing, as_problems


@click.command(name="rebuild-projections")
@click.argument("run_ids", nargs=-1, metavar="[RUN_ID]...")
@click.option("--instance-id", metavar="ID", help="Rebuild the views of all runs of this workflow.")
@click.option("--missing", is_flag=True, help="Only runs without a summary.")
@click.option("--needs-rebuild", is_flag=True, help="Only runs whose stored views are missing or wrong.")
@click.option("--prune-stale", is_flag=True, help="Also remove views of runs that no longer exist.")
@click.option("--dry-run", is_flag=True, help="Print the changes, and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON.")
@options.place
@options.namespace
def rebuild(
    run_ids: tuple[str, ...],
    instance_id: str | None,
    missing: bool,
    needs_rebuild: bool,
    prune_stale: bool,
    dry_run: bool,
    as_json: bool,
    path: options.Place,
    namespace: str,
) -> None:
    """Rebuild the stored views of runs: summary, waits, timeline, timers and lineage.

    Stored views are derived from history, so a rebuild loses nothing. Without options, all runs of the namespace are
    rebuilt.

    \b
    Examples:
      dw system rebuild-projections --needs-rebuild --prune-stale
      dw system rebuild-projections --missing --dry-run --db shop.db
      dw system rebuild-projections --server http://127.0.0.1:8080 --token TOKEN 01M7JKKHG86V4H41K556V597T6
    """
    chosen: dict[str, Any] = {
        "missing": missing,
        "needs_rebuild": needs_rebuild,
        "prune_stale": prune_stale,
        "dry_run": dry_run,
    }
    if isinstance(path, options.ServerAt):
        body = chosen | {"run_ids": list(run_ids), "instance_id": instance_id}
        done = asked(path, "POST", "/api/system/projections/rebuild", body, namespace=namespace)
    else:
        done = _on_database(path, namespace, run_ids, instance_id, chosen)
    if as_json:
        click.echo(json.dumps(done))
    else:
        verb = "would be rebuilt" if dry_run else "rebuilt"
        number = done["matched"] if dry_run else done["rebuilt"]
        click.echo(
            f"{done['looked_at']} runs looked at, {number} {verb}, {done['pruned']} orphans"
            f" {'found' if dry_run else 'removed'}, {done['failed']} failed"
        )
        for failure in done["failures"]:
            click.echo(failure, err=True)
    if done["failed"]:
        raise SystemExit(1)


def _on_database(
    path: str, namespace: str, run_ids: tuple[str, ...], instance_id: str | None, chosen: dict[str, Any]
) -> dict[str, Any]:
    import msgspec

    from backstay.cli.reading import StoreReader
    from backstay.engine.views.stored_views import Rebuild
    from backstay.kernel.message import Refused

    with StoreReader(path) as reader:
        asked_for = Rebuild(run_ids=run_ids, workflow_id=instance_id, namespace=namespace, **chosen)

        def progress(looked: int) -> None:
            if looked >= 1000:
                click.echo(f"\r{looked} runs", nl=False, err=True)

        with as_problems():
            try:
                return msgspec.to_builtins(reader.get(reader.node.views.rebuild(asked_for, progress)))
            except Refused as refusal:
                raise Missing(refusal.message) from None


@click.command(name="liveness")
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON.")
@options.place
@options.namespace
def liveness(as_json: bool, path: options.Place, namespace: str) -> None:
    """Prove that a task or wake on disk will resume every open run. Exit code 1: at least one run is stranded.

    \b
    Examples:
      dw system liveness
      dw system liveness --server http://127.0.0.1:8080 --token TOKEN --json
    """
    if isinstance(path, options.ServerAt):
        found = asked(path, "GET", "/api/system/liveness?fresh=1", namespace=namespace)
    else:
        found = _prove(path, namespace)
    if as_json:
        click.echo(json.dumps(found))
    else:
        click.echo(found["sentence"])
        for source, number in found["resume_sources"].items():
            click.echo(f"  {number:>10,}  {source.replace('_', ' ')}")
        for one in found["stranded_runs"]:
            click.echo(f"stranded: {one['workflow_id']}; restore it with: dw repair {one['workflow_id']}", err=True)
    if found["stranded"]:
        raise SystemExit(1)


def _prove(path: str, namespace: str) -> dict[str, Any]:
    import msgspec

    from backstay.cli.reading import StoreReader
    from backstay.engine.views.certificate import shown_proof

    with StoreReader(path) as reader:
        return msgspec.to_builtins(
            shown_proof(reader.get(reader.node.certificate.prove()), namespace, reader.world.now())
        )


@click.group(name="system")
def command() -> None:
    """Check and maintain a server or a database."""


command.add_command(rebuild)
command.add_command(liveness)
