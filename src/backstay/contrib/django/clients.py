"""The client of a Django process: opened at its first use, once per process, closed when the process ends.

It only starts, reads and commands; `manage.py backstay_worker` does the work. Each process opens its own, after it was forked.
In tests the place of the setting is never opened: `testing()` runs everything in memory.
"""
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import atexit
import os
from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock
from typing import Any, ParamSpec, overload

from django.core import mail
from django.db import DEFAULT_DB_ALIAS, connections, transaction

from backstay import Backstay, BackstayError, Client
from backstay.contrib.django.project import flows, place
from backstay.kernel.features.start import check_id
from backstay.kernel.message import Refused
from backstay.sdk.author.workflow import EntryPoint, WorkflowFn, definition_of
from backstay.sdk.client.handle import error_of

P = ParamSpec("P")

_lock = Lock()
_opened: tuple[int, Client] | None = None  # by the process that opened it
_of_test: Client | None = None


def client() -> Client:
    """Return the client of this process, for the database or the server of the setting `BACKSTAY`.

    It is opened when it is first used, and runs no work. In a test it is the one of `testing()`; without that it is an
    error, because tests must not reach the workflows of the project.
    """
    global _opened
    if _of_test is not None:
        return _of_test
    if in_test():
        raise BackstayError(
            "a test has used backstay.contrib.django.client(), which would open the database of the project; put the test"
            " into `with testing():`, which runs workflows in memory"
        )
    with _lock:
        if _opened is None or _opened[0] != os.getpid():
            _opened = (os.getpid(), _open())
        return _opened[1]


def _open() -> Client:
    where = place()
    if where.server is not None:
        made = Client(where.server, token=where.token, namespace=where.namespace)
        atexit.register(made.close)
        return made
    assert where.database is not None
    app = Backstay(where.database, namespace=where.namespace, queues=(), client_only=True)
    atexit.register(app.close)
    return app.open()


@overload
def start_on_commit(workflow: WorkflowFn[P, Any], id: str, /, *args: P.args, **kwargs: P.kwargs) -> None: ...
@overload
def start_on_commit(workflow: type[EntryPoint[P, Any]], id: str, /, *args: P.args, **kwargs: P.kwargs) -> None: ...
def start_on_commit(workflow: Any, id: str, /, *args: Any, **kwargs: Any) -> None:
    """Start a workflow when the running transaction has been committed; at once if there is none.

    The transaction is that of the default database, or, if that has none, of another one that has. A transaction that is
    rolled back starts nothing. Id and arguments are checked now, so that a mistake rolls it back. An id
    that is taken is left as it is: the workflow of that id has been started before. If the process dies between the commit
    and the start, nothing is started; a schedule that looks for such rows and starts them under the same ids makes up for it.
    """
    definition_of(workflow).signature.pack_fitting(args, kwargs)
    try:
        check_id(id)
    except Refused as refusal:
        raise error_of(refusal.reason, refusal.message, **refusal.fields) from None

    def start() -> None:
        client().options(if_exists="return_existing").start(workflow, id, *args, **kwargs)

    transaction.on_commit(start, using=_database())


def _database() -> str:
    """Return the database whose transaction is running."""
    running: list[str] = [name for name in connections if connections[name].in_atomic_block]
    return DEFAULT_DB_ALIAS if DEFAULT_DB_ALIAS in running else next(iter(running), DEFAULT_DB_ALIAS)


def in_test() -> bool:
    """Return whether Django's test runner, or pytest-django, has set up this process."""
    return hasattr(mail, "outbox")


@contextmanager
def testing() -> Generator[Backstay]:
    """Run the workflows of the project in memory; within it `client()` is this engine, which also does the work.

    Activities run on threads of their own, with their own database connections: use it in a `TransactionTestCase`, whose
    rows are committed.
    """
    global _of_test
    found = flows()
    with Backstay(":memory:", found.things, queues=found.queues) as app:
        before, _of_test = _of_test, app
        try:
            yield app
        finally:
            _of_test = before
