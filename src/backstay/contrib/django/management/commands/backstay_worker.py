"""`manage.py backstay_worker`: run the workflows and activities of the project until SIGTERM or Ctrl-C."""
# pyright: reportMissingTypeStubs=false, reportUntypedBaseClass=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import signal
from threading import Event
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from backstay import Backstay
from backstay.contrib.django.project import Flows, Place, flows, place
from backstay.store.address import shown


class Command(BaseCommand):
    help = "Run the workflows and activities of the project, until SIGTERM or Ctrl-C."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--queue", action="append", metavar="NAME", help="Only this queue. May be repeated.")
        parser.add_argument("--threads", type=int, default=200, metavar="N", help="How many activities run at once.")

    def handle(self, *args: Any, **options: Any) -> None:
        where, found = place(), flows()
        if options["queue"]:
            found = found._replace(queues=options["queue"])
        if where.server is None:
            self._embedded(where, found, options["threads"])
        else:
            self._remote(where, found, options["threads"])

    def _embedded(self, where: Place, found: Flows, threads: int) -> None:
        assert where.database is not None
        ended = Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _, __: ended.set())
        app = Backstay(
            where.database, found.things, namespace=where.namespace, queues=found.queues, threads=threads, shims=True
        )
        with app:
            self._say(shown(where.database), found)
            ended.wait()

    def _remote(self, where: Place, found: Flows, threads: int) -> None:
        from backstay.sdk.remote.worker import AsyncWorker, work

        assert where.server is not None
        worker = AsyncWorker(
            where.server,
            found.things,
            queues=found.queues,
            token=where.token,
            namespace=where.namespace,
            threads=threads,
            shims=True,
        )
        work(worker, lambda: self._say(str(where.server), found))

    def _say(self, where: str, found: Flows) -> None:
        self.stdout.write(f"works for {where}, queue {', '.join(found.queues)}")
        self.stdout.flush()
