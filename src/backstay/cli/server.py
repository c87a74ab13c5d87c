"""`dw server`: the engine over HTTP, for workers and clients in any language."""

from __future__ import annotations

import logging
import secrets
from typing import Any

import click
from msgspec.structs import replace

from backstay.cli.problems import CliError, as_problems
from backstay.logging import log_to_stderr
from backstay.server.settings_reference import flag_help


@click.command(name="server")
@click.option("--host", metavar="ADDRESS", help=flag_help("host"))
@click.option("--port", metavar="NUMBER", help=flag_help("port"))
@click.option("--advertise", metavar="URL", help=flag_help("advertise"))
@click.option("--weight", metavar="NUMBER", help=flag_help("weight"))
@click.option("--node-name", metavar="NAME", help=flag_help("node_name"))
@click.option("--store", metavar="URL", help=flag_help("store"))
@click.option("--token", metavar="TOKEN", help=flag_help("token"))
@click.option("--auth", metavar="MODE", help=flag_help("auth"))
@click.option("--tls-certificate", metavar="FILE", help=flag_help("tls_certificate"))
@click.option("--tls-key", metavar="FILE", help=flag_help("tls_key"))
@click.option("--log-format", metavar="FORM", help=flag_help("log_format"))
@click.option("--config", metavar="FILE", help="A TOML file with settings. Flags and DW_* variables override it.")
@click.option("--verbose", is_flag=True, help="Log what the engine does.")
def command(verbose: bool, **flags: Any) -> None:
    """Serve the engine over HTTP: the worker protocol and the control plane.

    Each setting is also a variable, DW_ and its name in capitals: DW_PORT, DW_STORE, DW_TOKEN, DW_WORKER_TOKEN,
    DW_OPERATOR_TOKEN, DW_ADMIN_TOKEN, DW_MAX_BODY_BYTES, ... On SIGTERM and Ctrl-C the server drains: running requests
    finish, waiting polls are answered, and no committed work is lost.

    \b
    Examples:
      dw server
      dw server --port 9000 --store sqlite:/var/lib/backstay/prod.db
      dw server --store postgresql://backstay@db.internal/prod
      dw server --store postgresql://backstay@db.internal/prod --weight 2 --node-name big-1
      DW_WORKER_TOKEN=w DW_OPERATOR_TOKEN=o DW_ADMIN_TOKEN=a dw server --host 0.0.0.0
      curl -H "Authorization: Bearer TOKEN" http://127.0.0.1:8080/api/cluster/info
    """
    from backstay.server.settings import WrongSetting, load
    from backstay.store.address import shown

    try:
        settings = load(flags)
    except WrongSetting as wrong:
        raise CliError(str(wrong)) from None
    log_to_stderr(logging.INFO if verbose else logging.WARNING, settings.log_format)
    made = None
    known = (
        settings.token,
        settings.worker_token,
        settings.viewer_token,
        settings.operator_token,
        settings.admin_token,
    )
    if settings.auth == "token" and not any(known):
        made = secrets.token_urlsafe(24)
        settings = replace(settings, token=made)
    from backstay.server.http.serve import CannotListen, run

    def started(address: str) -> None:
        click.echo(f"Backstay serves {shown(settings.database)} at {address}")
        if made is not None:
            click.echo(f"token (shown once, for every role): {made}")

    try:
        with as_problems():
            run(settings, started)
    except CannotListen as error:
        raise CliError(str(error)) from None
