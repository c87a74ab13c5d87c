"""Rows that are lost, forged or damaged, in memory and on files alike. History is the authority: no outcome may change."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from backstay.codec import avro
from backstay.kernel.decision import InstanceRow
from backstay.kernel.features.child.messages import SignalFromParent
from backstay.kernel.send import unpack
from backstay.kernel.task import Task
from backstay.store import StoredSend

from .programs import MOST_TOLD

if TYPE_CHECKING:
    from .simulation import Simulation

Statement = tuple[str, tuple[Any, ...]]

MADE_AGAIN = {
    *("StartFromParent", "StartFromSchedule", "ChildReport", "PolicyAnswer"),
    *("SignalFromParent", "AskAfterSignals", "SignalsArrived"),
}
"""Sends that the slow sweep asks for once more."""


def made_again(send: StoredSend) -> bool:
    """A signal that is made again comes after those that followed it: only the last of several to one child is lost."""
    if send.kind != "SignalFromParent":
        return send.kind in MADE_AGAIN
    message = unpack(SignalFromParent, send.body)
    assert isinstance(message, SignalFromParent)
    if message.signal_name != "tell":
        return False
    arguments: Any = avro.decode(message.arguments or b"")
    return str(arguments[0]).endswith(f".{MOST_TOLD - 1}")


class Rows:
    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self.forgotten = False  # a send was lost, and those who have it in mind are to die
        self.forged: set[str] = set()  # ids of task rows that nobody expects
        self._touches = 0
        self._signals: dict[str, tuple[int, int]] = {}  # lost on their way to this child, from this instance and run

    def unheard(self) -> set[str]:
        """Children whose signal was lost, and whose parent can no longer ask after it: its run closed, or is unreadable."""
        sim = self._sim
        return {
            child
            for child, (parent, run) in self._signals.items()
            if parent in sim.damaged or sim.auditor.runs[run].closed is not None
        }

    def forget(self) -> None:
        """Runs are gone: nothing was lost on its way from them."""
        runs = self._sim.auditor.runs
        self._signals = {child: (parent, run) for child, (parent, run) in self._signals.items() if run in runs}

    def disturb(self) -> None:
        disk = self._sim.disk
        tasks = list(disk.all_tasks())
        rows = [row for _, row in sorted(disk.workflows.items())]
        waking = [row for row in rows if row.next_wake is not None]
        self._hit("task lost", tasks, self._lose_task)
        held = [task for task in tasks if task.state == "leased"]
        self._hit("task falsified", held or tasks, self._falsify_task)
        self._damage()
        self._hit("wake early", waking, lambda row: self._set(row, next_wake=1))
        self._hit("wake lost", [row for row in waking if row.expects == 0], self._lose_wake)
        self._hit("count falsified", rows, self._falsify_count)
        runs = [r for _, r in sorted(disk.runs.items())]
        self._hit("index falsified", [r for r in runs if r.closed_at is None] or runs, self._falsify_index)

    def written(self) -> None:
        """After each commit: what it has just sent may be gone again."""
        sends = self._sim.disk.sends
        if sends:
            self._hit("send lost", [s for _, s in sorted(sends.items()) if made_again(s)], self._lose_send)

    def _hit(self, fault: str, things: list[Any], strike: Callable[[Any], object]) -> None:
        faults = self._sim.faults
        if things and faults.fires(fault):
            strike(faults.dice(fault).choice(things))

    def _also(self, *statements: Statement) -> bool:
        """The same on the file, if there is one."""
        files = self._sim.files
        return files is None or files.change(*statements)

    def _sabotaged(self, key: int, what: str) -> None:
        self._sim.log(what)
        self._sim.sabotaged.add(key)

    def touch(self, key: int) -> None:
        """Somebody else has written the instance. The id of that write is never given again, as little as an engine's is."""
        disk = self._sim.disk
        row = disk.workflows.get(key)
        self._touches += 1
        if row is not None and self._also(
            ("update workflow set last = ? where key = ?", (-self._touches, key)),
            ("insert into notice (workflow) values (?)", (key,)),
        ):
            disk.workflows[key] = replace(row, last_decision=-self._touches)
            disk.notices.append(key)
            disk.version += 1

    # -- tasks

    def _lose_task(self, task: Task) -> None:
        if self._also(("delete from task where workflow = ? and id = ?", (task.workflow, task.id))):
            del self._sim.disk.tasks[task.workflow][task.id]
            self._sabotaged(task.workflow, f"the row of task {task.id} is lost")

    def _falsify_task(self, task: Task) -> None:
        if task.id not in self._sim.disk.tasks[task.workflow]:
            return  # just lost
        forged = self._sim.faults.dice("task falsified").choice(
            [
                replace(task, state="leased", owner="nobody/worker", until=None),
                replace(task, state="ready", owner=None, until=None),
                replace(task, id=task.id + "9"),
            ]
        )
        body = msgspec.json.encode(forged)
        row = (forged.workflow, forged.id, forged.state, forged.available_at, body)
        if self._also(
            ("insert or replace into task (workflow, id, state, available_at, body) values (?, ?, ?, ?, ?)", row)
        ):
            self._sim.disk.put_task(forged)
            if forged.id != task.id:
                self.forged.add(forged.id)
            self._sabotaged(task.workflow, f"the row of task {task.id} is falsified: {forged.state} {forged.id}")

    # -- instances

    def _set(self, row: InstanceRow, **columns: Any) -> bool:
        named = ", ".join(f"{name} = ?" for name in columns)
        done = self._also((f"update workflow set {named} where key = ?", (*columns.values(), row.key)))
        if done:
            self._sim.disk.workflows[row.key] = replace(self._sim.disk.workflows[row.key], **columns)
            self._sim.log(f"the row of {row.workflow_id} says {columns}")
        return done

    def _lose_wake(self, row: InstanceRow) -> None:
        if self._set(row, next_wake=None):
            self._sim.sabotaged.add(row.key)

    def _falsify_count(self, row: InstanceRow) -> None:
        if self._set(row, expects=row.expects + 1):
            self._sim.sabotaged.add(row.key)

    # -- sends and the index

    def _lose_send(self, send: Any) -> None:
        if self._also(("delete from send where key = ?", (send.key,))):
            del self._sim.disk.sends[send.key]
            self._sim.log(f"a {send.kind} to {send.workflow_id} is lost")
            self._sim.auditor.schedules.lost.add(send.workflow_id)
            self._sim.auditor.ownership.lost(send)
            if send.kind == "SignalFromParent":
                self._signals[send.workflow_id] = send.sender, self._sim.disk.workflows[send.sender].run or 0
            self.forgotten = self._sim.faults.dice("send lost").random() < 0.7

    def _falsify_index(self, run: Any) -> None:
        """A list may be wrong for a while; nobody may believe an end that history does not know."""
        forged = replace(run, status="completed", closed_reason="completed")
        if run.closed_at is not None:
            forged = replace(run, status="pending", closed_reason=None, closed_at=None)
        changed = (forged.status, forged.closed_reason, forged.closed_at, run.key)
        if self._also(("update run set status = ?, closed_reason = ?, closed_at = ? where key = ?", changed)):
            self._sim.disk.runs[run.key] = forged
            self._sim.falsified.add(run.key)
            self._sim.log(f"the index says that {run.workflow_id} is {forged.status}")

    # -- history

    def _damage(self) -> None:
        """A bit of one event of a run is another. From now on nobody who reads it may believe it."""
        sim = self._sim
        started = [told for told in sim.told if told.started and not told.damaged]
        started = [told for told in started if ("default", told.id) in sim.disk.names]  # else they are forgotten
        if not started or not sim.faults.fires("history damaged"):
            return
        dice = sim.faults.dice("history damaged")
        told = dice.choice(started)
        key = sim.disk.names["default", told.id]
        run = sim.disk.workflows[key].run or 0
        rows = sim.disk.events[run]
        place = dice.randrange(len(rows))
        sequence, type, at, body, context, checksum = rows[place]
        bit = dice.randrange(len(body) * 8)
        changed = bytearray(body)
        changed[bit // 8] ^= 1 << (bit % 8)
        if self._also(("update event set body = ? where run = ? and sequence = ?", (bytes(changed), run, sequence))):
            sim.disk.damage(run, place, (sequence, type, at, bytes(changed), context, checksum))
            sim.log(f"bit {bit} of event {sequence} of {told.id} is another")
            told.damaged = True
            sim.damaged.add(key)
            sim.unreadable[run] = (told, len(rows))
