"""The errors of `dw`: each is one line on stderr and an exit code."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from threading import Timer

import click

MOMENT = 1.0  # seconds


class CliError(click.ClickException):
    """A mistake of the caller."""

    exit_code = 2


class Missing(CliError):
    """A workflow, run or schedule that does not exist."""

    exit_code = 1


class Unsuccessful(CliError):
    """A command that was carried out and did not end well."""

    exit_code = 1


@contextmanager
def waiting_for(what: str) -> Generator[None]:
    """Print what is being waited for if it takes more than a second."""
    message = f"still waiting for an answer from {what}; Ctrl-C stops"
    said = Timer(MOMENT, partial(click.echo, message, err=True))
    said.daemon = True
    said.start()
    try:
        yield
    finally:
        said.cancel()


@contextmanager
def as_problems() -> Generator[None]:
    """Turn errors of the store, the engine and the client into a `CliError`."""
    from backstay.kernel.event import HistoryDamaged
    from backstay.kernel.message import Refused
    from backstay.sdk.errors import RequestRefused, ScheduleNotFound, ServerError, WorkflowNotFound
    from backstay.store.errors import StoreError

    try:
        yield
    except (ScheduleNotFound, WorkflowNotFound) as missing:
        raise Missing(str(missing)) from None
    except Refused as refusal:
        kind = Missing if refusal.reason in ("workflow_not_found", "run_not_found", "schedule_not_found") else CliError
        raise kind(refusal.message) from None
    except (RequestRefused, ServerError, StoreError, HistoryDamaged) as error:
        raise CliError(str(error)) from None
