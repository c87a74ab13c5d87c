"""A small world of runs in every state, made through the public API with real workers. Its runs, by workflow id:

    approval-1     waits until it is approved: signal `approve`, update `amend` (typed), query `status`; has got an update
    invoice-1      waits for signal `payment`; business key, two labels, memo, search attributes
    reminder-1     sleeps for 45 days
    delivery-1     its activity backs off for an hour, attempt 2 of 21 is next
    import-1       its activity runs and has reported 400 of 1,000 rows
    shipping-1     blocked: its worker came back with code that does not fit the history
    stranded-1     no worker: nobody polls queue `nowhere`
    order-1        failed, by an activity's exception with a traceback
    welcome-1      completed
    cancelled-1    cancelled, with a reason
    terminated-1   terminated, with a reason
    paused-1       paused, with a reason
    poller-1       its fourth run, three times continued as new; waits for signal `payment`
    family-1       waits for two children; a third has completed, a fourth had a child of its own that failed
    batch-1        completed, 18 activities: eight at once, six one by one (one tried twice), four at once
    hostile-…      HOSTILE_ID, 191 characters: markup, right-to-left text and emoji in every place that takes text; retrying
    hostile-2      failed, and its message is an attack
    large-1        completed, 1 MB in its argument and in its result
    job-1          a standalone activity, failed

Schedules: `nightly` (cron in Berlin, triggered once: run `schedule:nightly:trigger:1`) and `hourly` (paused, with a hostile
note). Queues: `default` (served), `deploys` (served), `nowhere` (nobody).

One world serves all tests of a session, whatever process they run in. So nobody changes it: a test that sends commands has runs of
its own (`World.begin`). The first test that needs it has it built, in a process that keeps the server and its workers until the process
that runs the tests is gone: `python -m tests.waterline.world PID DIRECTORY`.
"""

from __future__ import annotations

import os
import select
import shutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from backstay import Client

from .. import session
from . import world_code as code
from .kit import PATIENCE, ServerProcess, WorkerProcess, call, until

CODE = Path(code.__file__)

HOSTILE_ID = "hostile-" + "~.:_-" + "x" * (191 - 13)

EXPECTED: dict[str, tuple[str, str, str | None]] = {
    "approval-1": ("waiting", "waits_for_condition", None),
    "invoice-1": ("waiting", "waits_for_signal", None),
    "reminder-1": ("sleeping", "sleeps", None),
    "delivery-1": ("retrying", "tries_again", "retrying"),
    "import-1": ("working", "runs_activity", None),
    "shipping-1": ("blocked", "blocked", "blocked"),
    "stranded-1": ("ready", "needs_worker", "no_worker"),
    "order-1": ("failed", "failed", None),
    "welcome-1": ("completed", "completed", None),
    "cancelled-1": ("cancelled", "cancelled", None),
    "terminated-1": ("terminated", "terminated", None),
    "paused-1": ("paused", "paused", None),
    "poller-1": ("waiting", "waits_for_signal", None),
    "family-1": ("waiting", "waits_for_child", None),
    "batch-1": ("completed", "completed", None),
    HOSTILE_ID: ("retrying", "tries_again", "retrying"),
    "hostile-2": ("failed", "failed", None),
    "large-1": ("completed", "completed", None),
    "job-1": ("failed", "failed", None),
    "schedule:nightly:trigger:1": ("completed", "completed", None),
}
"""Of each run: its state, the verb of why it is there, and what it needs attention for."""

SEARCHED = {"customer": "keyword", "stage": "keyword", "priority": "int"}
"""The search attributes of the namespace, and their types."""

_numbers = count(1)


class World:
    """The world, seen from a test."""

    def __init__(self, url: str) -> None:
        self.url = url

    def call(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        """`path` begins after `/api`."""
        return call(self.url, method, path, body, **options)

    def get(self, path: str, **options: Any) -> Any:
        """What a GET answers, which has to be a success."""
        answer = self.call("GET", path, **options)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:500]}"
        return answer.json()

    def why(self, workflow_id: str) -> dict[str, Any]:
        return self.get(f"/workflows/{workflow_id}/why")

    def row(self, workflow_id: str) -> dict[str, Any]:
        """The current run of a workflow, as the list for operators shows it."""
        runs = self.get("/flows/all", params={"instance_id": workflow_id, "definition": 0})
        return next(iter(runs["flows"]))

    def run_id(self, workflow_id: str) -> str:
        return self.get(f"/workflows/{workflow_id}")["run_id"]

    def begin(self, type: str, *arguments: Any, **fields: Any) -> str:
        """Start a run that the calling test may do with as it likes; `type` is one of `world_code`. Returns its workflow id."""
        workflow_id = f"own-{os.getpid()}-{next(_numbers)}"
        body = {"workflow_type": type, "workflow_id": workflow_id, "task_queue": "default", "input": list(arguments)}
        answer = self.call("POST", "/workflows", body | fields)
        assert answer.status_code == 201, answer.text
        return workflow_id

    def reach(self, workflow_id: str, verb: str) -> dict[str, Any]:
        """Why a run is where it is, as soon as that is told with this verb."""
        said: dict[str, Any] = {}

        def reached() -> bool:
            said.update(self.why(workflow_id))
            return said["verb"] == verb

        until(reached, lambda: f"{workflow_id} is not where it should be ({verb}): {said}")
        return said


def shared() -> World:
    """The world of this session, built if it does not stand yet."""
    said = session.shared("tests.waterline.world", "-waterline", 2 * PATIENCE)
    assert said.startswith("http://"), said
    return World(said)


def supervise(keeper: int, place: Path) -> None:
    """Keep a world until the process that runs the tests has ended."""
    gone = os.pidfd_open(keeper)
    try:
        with standing(place) as world:
            (place / "starting").write_text(world.url)
            (place / "starting").rename(place / "told")
            select.select([gone], [], [])
    except BaseException:
        (place / "told").write_text(f"the world was not built: {traceback.format_exc()}")
        raise
    finally:
        select.select([gone], [], [])  # others of the session read what is told here
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def standing(directory: Path) -> Iterator[World]:
    """A server with the world, for as long as the block lasts."""
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(directory, "--auth", "none"))
        yield build(server, directory, stack)


def build(server: ServerProcess, directory: Path, stack: ExitStack) -> World:
    """Everything is started first and waited for at the end, so that it happens at the same time."""
    world = World(server.url)
    old = {"BACKSTAY_WORLD_CODE": "old"}
    main = stack.enter_context(WorkerProcess(directory, CODE, server.url, "default"))
    before = stack.enter_context(WorkerProcess(directory, CODE, server.url, "deploys", environment=old))
    for name, type in SEARCHED.items():
        assert world.call("POST", "/search-attributes", {"name": name, "type": type}).status_code == 201
    client = stack.enter_context(Client(server.url))
    _start(client)
    before.ready()
    main.ready()
    world.reach("shipping-1", "waits_for_signal")
    before.kill()
    after = stack.enter_context(WorkerProcess(directory, CODE, server.url, "deploys"))
    client.handle(code.Approval, "approval-1").update(code.Approval.amend, code.Money(3900), "a discount")
    hostile = client.handle(code.Hostile, HOSTILE_ID)
    world.reach(HOSTILE_ID, "tries_again")
    hostile.signal(code.Hostile.say, code.HOSTILE, code.LARGEST)
    client.handle(None, "cancelled-1").cancel("the customer changed her mind")
    client.handle(None, "terminated-1").terminate("started by mistake")
    world.reach("paused-1", "waits_for_condition")
    client.handle(None, "paused-1").pause("the warehouse is closed")
    after.ready()
    client.handle(None, "shipping-1").signal(code.payments, code.Money(100))
    for workflow_id, (_, verb, _) in EXPECTED.items():
        world.reach(workflow_id, verb)
    until(lambda: _progress(world) == 400, "import-1 has not reported its rows")
    # Lists are answered from stored views, which follow a commit a little later.
    states = {workflow_id: state for workflow_id, (state, _, _) in EXPECTED.items()}
    until(lambda: {workflow_id: world.row(workflow_id)["state"] for workflow_id in states} == states)
    return world


def _start(client: Client) -> None:
    client.start(code.shipping, "shipping-1", "parcel 9")
    client.start(code.family, "family-1", "Kim")
    client.start(code.import_rows, "import-1", 1000)
    client.start(code.batch, "batch-1", 8, 6)
    client.start(code.Approval, "approval-1", code.Money(4200))
    client.options(
        business_key="invoice-2027-0007",
        labels={"team": "blue", "region": "emea"},
        memo={"by": "ada"},
        search={"priority": 7},
    ).start(code.invoice, "invoice-1", "acme")
    client.start(code.reminder, "reminder-1", 45)
    client.options(labels={"team": "red"}).start(code.delivery, "delivery-1", "parcel 17")
    client.start(code.stranded, "stranded-1", "parcel 3")
    client.options(labels={"team": "blue"}, business_key="order-4711").start(code.order, "order-1", 4200)
    client.start(code.welcome, "welcome-1", "Ada")
    client.start(code.Approval, "cancelled-1", code.Money(1))
    client.start(code.Approval, "terminated-1", code.Money(2))
    client.start(code.Approval, "paused-1", code.Money(3))
    client.start(code.poller, "poller-1", 0)
    numbers = [code.LARGEST, code.SMALLEST, code.INEXACT]
    client.options(
        business_key=code.HOSTILE[:100],
        labels={"team": code.HOSTILE[:60]},
        memo={"by": code.HOSTILE, "number": code.LARGEST},
        search={"customer": code.SCRIPT},
    ).start(code.Hostile, HOSTILE_ID, code.HOSTILE, numbers)
    client.start(code.hostile_failure, "hostile-2", code.HOSTILE)
    client.start(code.large, "large-1", "argument" * (1 << 17))
    client.start_activity(code.charge, "job-1", 99)
    nightly = client.schedules.options(cron="0 2 * * *", timezone="Europe/Berlin", note="the report of the night")
    nightly.create(code.welcome, "nightly", "night").trigger()
    client.schedules.options(every="1h", paused=True, note=code.HOSTILE[:200]).create(code.welcome, "hourly", "hour")


def _progress(world: World) -> object:
    (activity,) = world.get("/workflows/import-1/detail")["activities"]
    return (activity["last_heartbeat_progress"] or {}).get("current")


if __name__ == "__main__":
    supervise(int(sys.argv[1]), Path(sys.argv[2]))
