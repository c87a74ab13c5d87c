"""A program that forks and rewinds, and is killed by itself at its n-th commit. Whoever comes after it does the rest."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

from backstay import Backstay, Signal, WorkflowAlreadyStarted, activity, activity_info, wait, workflow
from backstay.kernel.event import Recorded

from .victim import Boundaries, Side

go: Signal[str] = Signal("go")
DIRECTORY = Path(sys.argv[1]) if __name__ == "__main__" else Path()


def note(what: str) -> None:
    with (DIRECTORY / "acts").open("a") as acts:
        acts.write(f"{what} {activity_info().idempotency_key} {activity_info().number}\n")


@activity(type="victim.reserve", max_crashes="forever")
def reserve() -> str:
    note("reserve")
    return "reserved"


@activity(type="victim.charge", max_crashes="forever")
def charge() -> str:
    note("charge")
    return "charged"


@workflow(type="victim.order")
def order() -> list[str]:
    return [reserve(), charge(), wait(go)]


def main(side: Side | None, commit: int) -> None:
    boundaries = Boundaries(side, commit)
    boundaries.install()
    with Backstay(DIRECTORY / "app.db", [order, reserve, charge], guard="off") as app:
        with suppress(WorkflowAlreadyStarted):
            app.start(order, "o-1")
        run = app.handle(order, "o-1")
        while not _charged(run.history()):
            pass
        # Each request has an id, so a repetition by the next process is answered by the record of the first.
        forked = app.options(request_id="fork").handle(order, "o-1").fork("victim.charge", new_id="o-2")
        app.options(request_id="rewind").handle(order, "o-1").rewind("victim.charge")
        for id in ("o-1", "o-2"):
            app.options(request_id=f"go {id}").handle(order, id).signal(go, id)
        results = {handle.id: handle.result(timeout=30) for handle in (run, forked)}
        runs = [(row.workflow_id, row.run_id, row.number, row.closed_reason) for row in app.list()]
        histories = {id: [entry.type for entry in app.handle(order, name).history(id)] for name, id, _, _ in runs}
    report = {"results": results, "runs": runs, "histories": histories, "commits": boundaries.committed}
    (DIRECTORY / "report.json").write_text(json.dumps(report))


def _charged(history: list[Recorded]) -> bool:
    return any(entry.type == "SignalWaitOpened" for entry in history)


if __name__ == "__main__":
    main(sys.argv[2] if sys.argv[2] in ("before", "open", "after") else None, int(sys.argv[3]))  # type: ignore[arg-type]
