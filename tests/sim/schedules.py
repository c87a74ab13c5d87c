"""Schedules: a client that looks after them, and what must hold of them.

The laws know nothing of the kernel's own arithmetic: what is planned here is a grid of moments, so that which occurrence
comes next, and how many were missed, can be said without asking it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any

from backstay.kernel.decision import Decision
from backstay.kernel.event import Recorded, clock
from backstay.kernel.features.schedule.records import ALL_STARTED
from backstay.kernel.values import SCHEDULES, SECOND, instance_kind
from backstay.sdk.errors import RequestRefused
from backstay.store.errors import StoreError

from .clients import Client, Lost
from .programs import Grammar, errand
from .virtual import EPOCH

if TYPE_CHECKING:
    from .simulation import Simulation

PLACE = "default" + SCHEDULES
SHARE = 0.4  # of the seeds that have schedules
EXCLUSIVE = ("skip", "buffer_one", "buffer_all")
"""Policies under which one workflow of a schedule runs at a time."""

MORE = ("cancel_other", "terminate_other", "allow_all")

PLANS: list[dict[str, Any]] = [
    {"cron": "* * * * *"},
    {"cron": "*/2 * * * *"},
    {"every": 90},
    {"every": 150, "offset": 30},
    {"every": 400, "jitter": 20},
]


class Planned:
    """A schedule as its client knows it."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.options: dict[str, Any] = {}
        self.created = False
        self.fired: list[str] = []  # workflows that an acknowledged trigger or backfill has named


class Planner(Client):
    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim, 9)
        self.plans: list[Planned] = []

    async def live(self) -> None:
        while self.sim.operations < self.sim.target:
            await asyncio.sleep(self.random.choice([0.1, 5, 30, 120]))
            await self.act()

    async def act(self) -> None:
        pick = self.random
        if not self.plans or (len(self.plans) < 2 and pick.random() < 0.1):
            self.plans.append(Planned(f"s{len(self.plans)}"))
        planned = pick.choice(self.plans)
        verbs = ["pause", "resume", "resume", "trigger", "trigger", "backfill", "update", "delete", "describe", "list"]
        verb = pick.choice(verbs) if planned.created else "create"
        if await self.plan(verb, planned):
            self.sim.done(f"{verb} schedule")

    async def plan(self, verb: str, planned: Planned) -> bool:
        """Say it until an answer comes, with the same request id each time, so that it is done once."""
        sim = self.sim
        sim.operation(f"{self.name} {verb} schedule {planned.id}")
        request_id = f"{self.name}-{self.serial()}"
        value = self._chosen(verb, planned)
        for attempt in range(8):
            try:
                await self._say(verb, planned, request_id, value)
            except (Lost, StoreError, TimeoutError):
                await asyncio.sleep(min(attempt, 5))
                continue
            except RequestRefused as refusal:
                sim.log(f"{self.name} {verb} schedule {planned.id} refused: {refusal.reason}")
                # It was created, or deleted, when no answer came; or it has had its runs.
                foreseen = "schedule_already_exists" if verb == "create" else "schedule_not_found"
                if refusal.reason != foreseen:
                    sim.violation("a schedule does what it is asked", (verb, planned.id, refusal.reason))
                planned.created = verb == "create"
                return False
            if verb not in ("describe", "list"):
                sim.auditor.schedules.answered(planned.id, request_id)
            return True
        return False

    def _chosen(self, verb: str, planned: Planned) -> Any:
        pick = self.random
        match verb:
            case "create":
                planned.options = {**pick.choice(PLANS), "overlap": pick.choice(["skip", "skip", *EXCLUSIVE, *MORE])}
                if pick.random() < 0.2:
                    planned.options["max_runs"] = pick.choice([1, 3])
                first = Grammar(Random(f"{self.sim.seed}:{planned.id}")).leaf()
                return [first, ["sleep", pick.choice([1, 70, 200])]]
            case "update":
                return pick.choice([{"overlap": pick.choice([*EXCLUSIVE, *MORE])}, pick.choice(PLANS)])
            case "trigger":
                return pick.choice([None, None, "allow_all", "skip"])
            case "backfill":
                now = EPOCH // SECOND + int(self.sim.loop.time())
                start = now - pick.choice([300, 900])
                return datetime.fromtimestamp(start, UTC), datetime.fromtimestamp(start + 200, UTC)
            case _:
                return None

    async def _say(self, verb: str, planned: Planned, request_id: str, value: Any) -> None:
        schedules = self.client(request_id).schedules
        handle = schedules.handle(planned.id)
        match verb:
            case "create":
                await schedules.options(**planned.options).create(errand, planned.id, planned.id, value)
                planned.created = True
            case "pause":
                await handle.pause()
            case "resume":
                await handle.resume()
            case "trigger":
                fired = await handle.trigger(overlap=value)
                planned.fired += [fired.workflow_id] if fired.workflow_id else []
            case "backfill":
                planned.fired += [f.workflow_id for f in await handle.backfill(*value) if f.workflow_id]
            case "update":
                await handle.update(**value)
            case "describe":
                await handle.describe()
            case "list":
                await schedules.list()
            case "delete":
                await handle.delete()
                planned.created = False
            case _:
                raise AssertionError(verb)

    async def end(self) -> None:
        """Nothing else ends a schedule, also one whose creation was never answered."""
        for planned in self.plans:
            await self.plan("delete", planned)


class Life:
    """A schedule from its creation to its end, as its history tells it."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.active = True
        self.over = False
        self.exhausted = False  # it is over because it has had its runs
        self.every, self.offset = 0, 0
        self.expected = 0  # the occurrence that comes next
        self.due = 0  # when
        self.missed: tuple[int, int] | None = None  # from which on, and how many
        self.buffer: list[int] = []
        self.running: set[str] = set()
        self.started: list[Any] = []
        self.left: int | None = None  # runs it may still have

    def plan(self, event: Any, clock: int) -> None:
        intervals = event.spec.intervals
        if intervals:
            self.every = _seconds(intervals[0].every) * SECOND
            self.offset = _seconds(intervals[0].offset or "PT0S") * SECOND
        else:
            self.every, self.offset = (120 if "/2" in event.spec.cron_expressions[0] else 60) * SECOND, 0
        self.begin(clock)

    def begin(self, clock: int) -> None:
        """What comes next is the first moment behind this one."""
        self.expected = clock - (clock - self.offset) % self.every + self.every


def _seconds(text: str) -> int:
    return int(text.removeprefix("PT").removesuffix("S"))


class ScheduleLaws:
    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._lives: dict[int, list[Life]] = {}
        self.lost: set[str] = set()  # workflows whose start was lost on its way

    def _must(self, holds: bool, law: str, about: object) -> None:
        self._sim.auditor.must(holds, law, about)

    # -- after every commit

    def committed(self, decision: Decision) -> None:
        row = decision.instance
        if instance_kind(row.namespace) != "schedule":
            return
        fired: Counter[int] = (
            Counter()
        )  # by the time of the decision: a commit may have several that waited for the database
        for entry in decision.events:
            kind = entry.type
            if kind == "ScheduleCreated":
                self._lives.setdefault(row.key, []).append(Life(row.workflow_id))
            life = self._lives[row.key][-1]
            fired[entry.at] += self._event(life, entry, punctual=row.key not in self._sim.sabotaged)
        faults = self._sim.faults.fired
        one_time = (
            faults["clock"] + faults["clock step"] > 0
        )  # recorded time does not go back: they may all have that of a fast clock
        once = one_time or max(fired.values(), default=0) <= 1
        self._must(once, "one fire for all that was missed", (row.workflow_id, fired))
        life = self._lives[row.key][-1]
        idle = life.active and not life.over and not life.running
        self._must(not (idle and life.buffer), "who waited goes when nothing is in its way", (life.id, life.buffer))

    def _event(self, life: Life, entry: Recorded, punctual: bool) -> int:
        """One event of a schedule; 1 if it is what became of a moment that has come."""
        event: Any = entry.event
        about = f"{life.id} {entry.sequence} {entry.type}"
        became = entry.type in ("ScheduleActionClosed", "ScheduleActionContinued")
        heard = entry.type == "ScheduleStartConfirmed" or (became and life.exhausted)
        self._must(life.over == heard, "a schedule that is over does nothing but hear of what it fired for", about)
        counted = 0
        match entry.type:
            case "ScheduleCreated":
                life.active = not event.paused
                life.left = event.max_runs
                life.plan(event, clock(entry))
            case "ScheduleUpdated":
                if "spec" in event.changed or "jitter_seconds" in event.changed:
                    life.plan(event, clock(entry))
            case "SchedulePaused":
                life.active = False
            case "ScheduleResumed":
                life.active = True
                life.begin(clock(entry))
            case "ScheduleTriggerSkipped" if event.reason == "missed_occurrences":
                self._must(life.missed is None, "what was missed is counted once", about)
                life.missed = (event.occurrence_time, event.skipped)
                self._sim.features.add("schedule missed")
            case "ScheduleTriggerSkipped" | "ScheduleActionBuffered" | "ScheduleTriggered":
                counted = self._fired(life, entry, event, about, punctual)
            case "ScheduleActionClosed":
                self._closed(life, event, about)
            case "ScheduleDeleted":
                life.over = True
                life.exhausted = event.reason == ALL_STARTED
            case "ScheduleRolledOver":
                self._sim.features.add("schedule rolled over")
            case _:
                pass
        if entry.type not in ("ScheduleActionClosed", "ScheduleActionContinued") and hasattr(event, "next_fire"):
            life.due = 0 if event.next_fire is None else event.next_fire.at
        return counted

    def _fired(self, life: Life, entry: Recorded, event: Any, about: str, punctual: bool) -> int:
        moment = event.occurrence_time
        by_clock = event.cause == "schedule" and not getattr(event, "drained", False)
        if by_clock:
            self._on_the_grid(life, moment, clock(entry), about, punctual)
        match entry.type:
            case "ScheduleTriggerSkipped":
                self._sim.features.add("schedule skipped")
            case "ScheduleActionBuffered":
                life.buffer.append(moment)
                self._sim.features.add("schedule buffered")
            case _:
                self._triggered(life, event, about)
        return by_clock

    def _on_the_grid(self, life: Life, moment: int, clock: int, about: str, punctual: bool) -> None:
        """Every moment of a schedule that is active is answered for once, in order: by a fire, or by being counted."""
        sim = self._sim
        first, count = life.missed or (moment, 0)
        life.missed = None
        self._must(life.active, "a schedule that is paused does not fire", about)
        self._must(first + count * life.every == moment, "what was missed is counted", (about, first, count, moment))
        self._must(first <= life.expected, "no moment is lost", (about, first, life.expected))
        self._must(clock >= moment, "no moment comes early", about)
        if (
            not sim.faults.fired["clock"] and not sim.faults.fired["clock step"]
        ):  # a clock that is set back comes to the same moments again
            self._must(first == life.expected, "a moment comes once", (about, first, life.expected))
        if sim.calm_at is not None and punctual and not sim.deaf and life.due:
            late = sim.true_time() - max(life.due, sim.calm_at + 60 * SECOND)
            patience = (10 if sim.sharing.evidence else 20) * SECOND
            self._must(late < patience, "I8 what is due comes in time", (about, late / SECOND))
        life.expected = moment + life.every

    def _triggered(self, life: Life, event: Any, about: str) -> None:
        sim = self._sim
        policy = event.effective_overlap_policy
        if event.drained:
            self._must(life.buffer[:1] == [event.occurrence_time], "who waited longest goes first", about)
            life.buffer = life.buffer[1:]
            sim.features.add("schedule drained")
        if policy in EXCLUSIVE:
            self._must(not life.running, "one workflow of a schedule at a time", (about, policy, life.running))
        elif life.running:
            sim.features.add("schedule overlap" if policy == "allow_all" else "schedule stops others")
        if life.left is not None:
            life.left -= 1
            self._must(life.left >= 0, "a schedule has no more runs than it may", about)
        sim.features.add(f"schedule {event.cause}")
        life.running.add(event.workflow_instance_id)
        life.started.append(event)

    def _closed(self, life: Life, event: Any, about: str) -> None:
        """What a schedule believes to be over is over."""
        sim = self._sim
        id = event.workflow_instance_id
        self._must(id in life.running, "the end of a workflow is told its schedule once", about)
        life.running.discard(id)
        if event.started and not sim.amnesia.may_be_told_of(id):
            run = sim.disk.run_ids.get(event.workflow_run_id)
            over = run is not None and sim.auditor.runs[run].closed
            self._must(bool(over), "what a schedule believes to be over is over", (about, id))

    # -- what clients see, and the end

    def answered(self, schedule: str, request_id: str) -> None:
        if (PLACE, schedule) in self._sim.amnesia.names:
            return
        key = self._sim.disk.names.get((PLACE, schedule))
        records = [] if key is None else self._sim.disk.commands.get(key, [])
        there = any(record.request_id == request_id for record in records)
        self._must(there, "nobody is answered before the commit", (schedule, request_id))

    def finish(self) -> None:
        disk = self._sim.disk
        for key, lives in self._lives.items():
            # One that was created anew sends the starts of the one before once more, and asks no further.
            asking = disk.workflows[key].unanswered > 0 or len(lives) > 1
            fired = [event for life in lives for event in life.started]
            numbers = Counter(event.trigger_number for event in fired)
            self._must(set(numbers.values()) <= {1}, "a fire has a number of its own", lives[0].id)
            for event in fired:
                id = event.workflow_instance_id
                there = ("default", id) in disk.names or (id in self.lost and asking)
                self._must(there, "every fire has started its workflow", (lives[0].id, id))
        planner = self._sim.planner
        for planned in planner.plans if planner is not None else ():
            if (PLACE, planned.id) in self._sim.amnesia.names:
                continue
            key = disk.names.get((PLACE, planned.id))
            lives = [] if key is None else self._lives[key]
            known = {event.workflow_instance_id for life in lives for event in life.started}
            self._must(known.issuperset(planned.fired), "who is told of a fire finds it", (planned.id, planned.fired))
