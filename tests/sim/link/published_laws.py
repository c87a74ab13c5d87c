"""The laws of the published protocol, as they show at the wire: what polls get, what reports come to, how long anybody waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from backstay.engine.core.idempotency import completed_task, ended_attempt
from backstay.kernel.decision import Decision
from backstay.kernel.features.workflow_task.messages import WAITING_FOR_HISTORY
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND, run_of

from .errands import QUEUE

if TYPE_CHECKING:
    from .published import Published, PublishedProcess
    from .simulation import LinkSimulation

POLLS = {"/api/worker/workflow-tasks/poll": "workflow", "/api/worker/activity-tasks/poll": "activity"}

SETTLED = 120
"""Virtual seconds of calm after which nothing of the faults is under way: no late segment, no wait for a dead server."""

MARGIN = 5
"""Virtual seconds that a reply may take in calm, beside the time that it was asked to wait."""

HANDED_OUT = 1
"""Virtual seconds in calm after which a ready task is with a poll that waits for it, at whichever server."""

STOLEN = 15
"""The same where servers cannot call each other, and look for tasks of others every five seconds."""

SHARED = 30
"""The same where there are limits, of which servers have their shares: they are given up when somebody asks for them."""

REASON = 10
"""Requests and connections that a task is reason enough for: polls, beats and the report."""

DOUBLED = 30
"""Virtual seconds after which a poll that got two tasks has one."""

HUNG_UP = 10
"""Virtual seconds after which a lease is released whose poll was over before it was given."""

RELEASED = 400
"""Virtual seconds after which a lease that nobody renews is over."""


class Asked:
    """A request of a worker, from when it was made."""

    def __init__(self, process: PublishedProcess, path: str, body: dict[str, Any], made: float, clock: int) -> None:
        self.process = process
        self.path = path
        self.body = body
        self.made = made
        self.clock = clock

    @property
    def polls(self) -> str | None:
        """The kind of tasks that it polls for."""
        return POLLS.get(self.path)

    @property
    def wait(self) -> float:
        return self.body.get("timeout_seconds", 0)

    @property
    def task_id(self) -> str:
        return self.path.split("/")[-2]

    def __repr__(self) -> str:
        return f"{self.path} of {self.process.name} at {self.made:.3f}: {self.body!r:.300}"


class Given(NamedTuple):
    """A lease: whose it is, and since when its task could be handed out."""

    owner: str | None
    ready: float


class PublishedLaws:
    def __init__(self, sim: LinkSimulation, all: Published) -> None:
        self._sim = sim
        self._all = all
        self._open: dict[Asked, None] = {}
        self._given: dict[tuple[str, int], Given] = {}  # by task and attempt
        self.begun: set[str] = set()  # attempts that a worker has heard of
        self._ready: dict[str, float] = {}  # since when a task could be handed out
        self._doubled: dict[tuple[str | None, str], float] = {}  # polls with two leases, and since when

    def _must(self, holds: bool, law: str, about: object) -> None:
        self._sim.auditor.must(holds, law, about)

    def _settled(self, since: float) -> bool:
        """Whether nothing was wrong for a while before this moment, and nothing is since."""
        calm = self._sim.calm_since
        return calm is not None and since > calm + SETTLED

    # -- commits

    def committed(self, decision: Decision) -> None:
        now = self._sim.loop.time()
        for change in decision.tasks:
            task = change.task
            if task is None or task.routing.queue != QUEUE:
                continue
            if task.state == "leased":
                # One whose lease has run out is offered again without having been ready.
                ready = self._ready.pop(task.id, now)
                self._given.setdefault((task.id, task.attempt), Given(task.owner, ready))
            elif task.state == "ready":
                later = (max(task.available_at, task.created_at) - self._sim.true_time()) / SECOND
                self._ready[task.id] = now + max(later, 0)

    # -- requests

    def asks(self, process: PublishedProcess, path: str, body: dict[str, Any]) -> Asked:
        asked = Asked(process, path, body, self._sim.loop.time(), self._sim.true_time())
        self._open[asked] = None
        if path.endswith("/fail") and "/workflow-tasks/" in path:
            failure = body["failure"]
            # The package takes 408 for a refusal of what it has decided, and gives the task back.
            foreseen = failure["type"] == WAITING_FOR_HISTORY or "server returned 408" in failure["message"]
            self._must(foreseen, "no code of an errand fails", asked)
        return asked

    def unanswered(self, asked: Asked, why: str) -> None:
        self._open.pop(asked, None)
        self._sim.log(f"{asked.process.name}: {asked.path} is not answered: {why}")
        given_up = why == "given up"  # by its worker, which has been told to stop
        self._must(given_up or not self._settled(asked.made), "in calm every request is answered", (asked, why))

    def answered(self, asked: Asked, status: int, reply: dict[str, Any]) -> None:
        self._open.pop(asked, None)
        took = self._sim.loop.time() - asked.made
        if self._settled(asked.made):
            in_time = took < asked.wait + MARGIN
            self._must(in_time, "in calm every request is answered", (asked, f"after {took:.3f} seconds"))
            refused = status != 200 if asked.polls is not None else status >= 500
            self._must(not refused, "in calm no server refuses to work", (asked, status, reply))
        if asked.polls is not None and status == 200:
            self._polled(asked, reply, took)
        elif asked.path.endswith(("/complete", "/fail", "/heartbeat")) and status in (200, 404, 409):
            self._reported(asked, status, reply)

    # -- polls

    def _polled(self, asked: Asked, reply: dict[str, Any], took: float) -> None:
        """S8: a poll gets one task, and whoever repeats it gets that one."""
        task = reply["task"]
        got = None if task is None else str(task["task_id"])
        name, call = asked.process.worker_id, str(asked.body["poll_request_id"])
        self._sim.log(f"{asked.process.name} is given {got} by {call[-6:]}, {reply['poll_status']}")
        held = [one.id for one in self._leases() if one.id != got and self._was_its(one, asked)]
        if reply["poll_status"] == "unavailable":
            held = []  # the database does not answer: nobody can say what the poll has, and its lease runs out
        self._must(not held, "S8 a poll that is repeated gets what it has", (asked, got, held))
        if task is None:
            self._sim.done("empty poll")
            waited = took > asked.wait - 0.01 or reply["poll_status"] != "empty"
            self._must(waited or not self._settled(asked.made), "in calm a poll waits for a task", (asked, took))
            return
        self._sim.done(f"{asked.polls} task polled")
        self._sim.laws.has_reason(asked.process.name, REASON)
        number = task["workflow_task_attempt" if asked.polls == "workflow" else "attempt_number"]
        given = self._given.get((str(got), number))
        leased = given is not None and given.owner == name
        self._must(leased, "S8 who is given a task has its lease", (asked, got, number, given))
        if asked.polls == "activity":
            self.begun.add(str(task["activity_attempt_id"]))
        if given is not None:
            self._came_soon(asked, str(got), given.ready)

    @property
    def _soon(self) -> float:
        linked = self._sim.places == 1 or self._sim.one_owner or (self._all.linked and not self._all.parted)
        return HANDED_OUT if linked else STOLEN

    def _came_soon(self, asked: Asked, task_id: str, ready: float) -> None:
        """In calm a ready task comes to a poll that waits for it, wherever both are."""
        since = max(asked.made, ready)
        if self._settled(since) and not self._sim.limits.any:
            waited = self._sim.loop.time() - since
            law = "in calm a ready task comes to a poll that waits"
            self._must(waited < self._soon, law, (asked, task_id, f"after {waited:.3f} seconds"))

    def _leases(self) -> list[Task]:
        return [one for one in self._sim.disk.all_tasks() if one.state == "leased" and one.routing.queue == QUEUE]

    def _was_its(self, task: Task, asked: Asked) -> bool:
        """Whether a task was leased by this poll when it was asked again, and still is."""
        mine = (task.owner, task.call) == (asked.process.worker_id, asked.body["poll_request_id"])
        stands = task.until is None or task.until > self._sim.true_time()
        return mine and stands and task.kind == asked.polls and (task.leased_at or 0) < asked.clock

    # -- reports

    def _reported(self, asked: Asked, status: int, reply: dict[str, Any]) -> None:
        verb = asked.path.rpartition("/")[2]
        auditor = self._sim.auditor
        name = asked.process.worker_id
        if "/activity-tasks/" in asked.path:
            attempt = asked.body["activity_attempt_id"]
            if verb == "heartbeat":
                goes_on = status == 200 and reply["can_continue"]
                self._sim.done("published beat" if goes_on else "published beat too late")
                if not goes_on and not reply.get("cancel_requested"):
                    auditor.told_over(attempt, name)
            elif status == 200 and reply["recorded"]:
                self._sim.done("published activity reported")
                auditor.thanked(attempt, name)
            else:
                self._sim.done("published activity refused")
                self._sim.log(f"{asked.process.name} is refused: {status} {reply.get('reason')}")
                auditor.told_over(attempt, name)
                disk = self._sim.disk
                history = disk.history(auditor.machine.kinds, disk.run_ids[attempt.partition("-")[0]])
                counted = ended_attempt(history, attempt, name)
                self._must(counted is None, "who repeats a report is told that it counts", (asked, status, reply))
        elif "/workflow-tasks/" in asked.path and verb == "complete":
            self._task_reported(asked, status, reply)

    def _task_reported(self, asked: Asked, status: int, reply: dict[str, Any]) -> None:
        disk = self._sim.disk
        number, name = asked.body["workflow_task_attempt"], asked.process.worker_id
        run = disk.run_ids[run_of(asked.task_id)]
        row = next((one for one in disk.tasks_of(disk.runs[run].workflow) if one.id == asked.task_id), None)
        current = row is not None and (row.state, row.attempt, row.owner) == ("leased", number, name)
        over = row is not None and row.until is not None and row.until <= self._sim.true_time()
        history = disk.history(self._sim.auditor.machine.kinds, run)
        told = completed_task(history, asked.task_id, name, number, run_of(asked.task_id), "")
        if status == 200 and reply["recorded"]:
            self._sim.done("published task reported")
            self._must(told is not None and not current, "what is acknowledged is in history", (asked, reply))
        else:
            self._sim.done("published task refused")
            self._sim.log(f"{asked.process.name} is refused: {status} {reply.get('reason')}")
            self._must(over or not current, "what history calls current is not refused", (asked, status, reply))
            self._must(told is None, "who repeats a report is told that it counts", (asked, status, reply))

    # -- every few seconds

    def look(self) -> None:
        self._handed_out()
        self._doubles()
        self._hung_up()

    def _handed_out(self) -> None:
        """In calm no task stands ready while a poll waits for it."""
        sim = self._sim
        patience = SHARED if sim.limits.any else self._soon
        since = sim.loop.time() - patience
        if not self._settled(since):
            return
        waiting = {
            asked.polls: asked
            for asked in self._open
            if asked.made < since and asked.process.life.alive and asked.process.steady < since
        }
        for task in sim.disk.all_tasks():
            if task.routing.queue != QUEUE or task.state != "ready" or task.kind not in waiting:
                continue
            late = self._ready.get(task.id, since) < since and not sim.auditor.held_back(task)
            self._must(not late, "in calm a ready task comes to a poll that waits", (task, waiting[task.kind]))

    def _doubles(self) -> None:
        """S8: a poll that got a second task, because nobody heard of the first, does not keep both."""
        now = self._sim.loop.time()
        polls: dict[tuple[str | None, str], list[str]] = {}
        for task in self._leases():
            if task.call is not None:
                polls.setdefault((task.owner, task.call), []).append(task.id)
        doubled = {poll: tasks for poll, tasks in polls.items() if len(tasks) > 1}
        self._doubled = {poll: self._doubled.get(poll, now) for poll in doubled}
        for poll, since in self._doubled.items():
            harmless = not self._sim.lossy() or self._settled(since)
            bound = 0 if harmless else DOUBLED
            self._must(now - since < bound, "S8 a poll gets one task", (poll, doubled[poll], since))

    def _hung_up(self) -> None:
        """Nothing is leased for long to whoever was gone before."""
        now, clock = self._sim.loop.time(), self._sim.true_time()
        fired = self._sim.faults.fired
        heard = not (fired["dies silently"] or fired["late segment"] or fired["stop server"] or fired["request twice"])
        there = {worker.worker_id for worker in self._all.workers}
        for task in self._leases():
            died = self._all.died_at.get(task.owner or "")
            if task.owner in there or died is None or task.leased_at is None:
                continue
            for_whom = clock - (now - died - 1) * SECOND  # when everybody had heard that it was gone
            held = (clock - task.leased_at) / SECOND
            bound = HUNG_UP if heard and task.leased_at > for_whom else RELEASED
            self._must(held < bound, "nothing is leased to who has hung up", (task.id, task.owner, held, died))
