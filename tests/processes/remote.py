"""A program with an open Backstay that does what it is told, one JSON line at a time, and answers in kind.

Every order runs on a thread of its own, so that a program can wait for a result and be asked something else meanwhile.
"""

from __future__ import annotations

import json
import resource
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from backstay import Backstay, WorkflowAlreadyStarted

from . import flows

_speaking = threading.Lock()


def say(**words: Any) -> None:
    with _speaking:
        print(json.dumps(words), flush=True)


class Orders:
    """What the program can be told."""

    def __init__(self, app: Backstay) -> None:
        self._app = app

    def start(self, workflow: str, id: str, args: list[Any]) -> str | None:
        return self._app.start(flows.BY_NAME[workflow], id, *args).run_id

    def start_many(self, workflow: str, ids: list[str], args: list[Any]) -> int:
        for count, id in enumerate(ids, 1):
            self._app.start(flows.BY_NAME[workflow], id, *args)
            if count == 5:
                say(event="some are started")
        return len(ids)

    def claim_ids(self, workflow: str, ids: list[str], args: list[Any]) -> int:
        """Start what nobody has started yet. Returns how many of them were ours."""
        accepted = 0
        for id in ids:
            with suppress(WorkflowAlreadyStarted):
                self._app.start(flows.BY_NAME[workflow], id, *args)
                accepted += 1
        return accepted

    def result(self, workflow: str, id: str) -> Any:
        return self._app.handle(flows.BY_NAME[workflow], id).result(timeout=30)

    def execute(self, workflow: str, id: str, args: list[Any]) -> Any:
        return self._app.execute(flows.BY_NAME[workflow], id, *args)

    def signal(self, workflow: str, id: str, name: str, args: list[Any]) -> None:
        self._app.handle(flows.BY_NAME[workflow], id).signal(name, *args)

    def update(self, workflow: str, id: str, name: str, args: list[Any]) -> Any:
        return self._app.handle(flows.BY_NAME[workflow], id).update(name, *args)

    def query(self, workflow: str, id: str, name: str, args: list[Any]) -> Any:
        return self._app.handle(flows.BY_NAME[workflow], id).query(name, *args)

    def describe(self, id: str) -> dict[str, Any]:
        found = self._app.describe(id)
        return {"status": found.status, "wait_kind": found.wait_kind, "liveness_state": found.liveness_state}

    def history(self, id: str) -> list[str]:
        return [entry.type for entry in self._app.history(id)]

    def list(self) -> dict[str, str]:
        return {row.workflow_id: row.status for row in self._app.list(limit=1000)}

    def repair(self, id: str) -> bool:
        return self._app.handle(None, id).repair().changed

    def limit_files(self, size: int | None) -> None:
        """No file of this process may grow beyond this: as a full disk does it."""
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard if size is None else size, hard))

    def is_engine(self) -> bool:
        return self._app.is_engine

    def has_engine(self) -> bool:
        return self._app.has_engine()


def main() -> None:
    path, options = sys.argv[1], json.loads(sys.argv[2])
    with Backstay(path, flows.REGISTER, **options) as app:
        say(event="open", engine=app.is_engine)
        orders = Orders(app)
        for line in sys.stdin:
            number, verb, arguments = json.loads(line)
            threading.Thread(target=_obey, args=(number, getattr(orders, verb), arguments), daemon=True).start()
    say(event="closed")


def _obey(number: int, verb: Callable[..., Any], arguments: dict[str, Any]) -> None:
    try:
        say(answer=number, value=verb(**arguments))
    except BaseException as error:
        say(answer=number, error=type(error).__name__, message=str(error))


if __name__ == "__main__":
    main()
