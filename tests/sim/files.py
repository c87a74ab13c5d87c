"""The same on real SQLite files. The model in memory is told of each commit and must agree with the file at every
checkpoint; when the power fails, everybody dies at once and of the last commit only a part may have reached the disk.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import astuple

from backstay.kernel.decision import Decision, InstanceRow
from backstay.kernel.event import Event, pack_buffered
from backstay.store import Applied, Ready
from backstay.store.sqlite import SqliteStore

from .disk import READS, Seam

if TYPE_CHECKING:
    from .simulation import Simulation


class Files:
    """One database file, and what can happen to it."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        place = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.directory = tempfile.mkdtemp(prefix="backstay-sim-", dir=place)
        self.path = os.path.join(self.directory, "sim.db")

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def read(self, suffix: str) -> bytes:
        try:
            with open(self.path + suffix, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return b""

    def change(self, *statements: tuple[str, tuple[Any, ...]]) -> bool:
        """Rows are changed by somebody who is no engine; False if that cannot be done now."""
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=0)
        try:
            connection.execute("begin immediate")
            for statement, values in statements:
                connection.execute(statement, values)
            connection.execute("commit")
        except sqlite3.OperationalError:
            return False  # somebody else is writing
        finally:
            connection.close()
        return True

    def cut(self, before: tuple[bytes, bytes], decisions: Sequence[Decision]) -> bool:
        """The power fails in the middle of a commit. Whether it is on disk is what the disk says afterwards."""
        sim = self._sim
        after = (self.read(""), self.read("-wal"))
        dice = sim.faults.dice("power cut")
        wal = after[1]
        if before[0] == after[0] and len(before[1]) < len(wal):
            wal = wal[: dice.randint(len(before[1]), len(wal))]
            if dice.random() < 0.5:
                wal += dice.randbytes(dice.choice([7, 24, 4096]))
        for node in list(sim.nodes):
            node.life.die("power cut")
        for suffix, content in (("", after[0]), ("-wal", wal)):
            with open(self.path + suffix, "wb") as file:
                file.write(content)
        if os.path.exists(self.path + "-shm"):
            os.unlink(self.path + "-shm")
        connection = sqlite3.connect(self.path)
        try:
            last = dict(connection.execute("select key, last from workflow").fetchall())
        finally:
            connection.close()
        there = [last.get(d.instance.key) == d.instance.last_decision for d in decisions]
        return any(there)

    def compare(self) -> str | None:
        """What differs between the file and the model."""
        disk = self._sim.disk
        if not os.path.exists(self.path):
            return None
        connection = sqlite3.connect(self.path)
        try:
            return self._difference(connection, disk)
        finally:
            connection.close()

    def _difference(self, connection: sqlite3.Connection, disk: Any) -> str | None:
        names = ", ".join(InstanceRow.__struct_fields__)
        rows = {row[0]: row for row in connection.execute(f"select {names} from workflow")}
        model = {key: _stored(row) for key, row in disk.workflows.items()}
        if rows != model:
            return f"instances: {[(rows.get(k), model.get(k)) for k in model if rows.get(k) != model.get(k)][:3]}"
        events: dict[int, list[Any]] = {}
        for run, *row in connection.execute(
            "select run, sequence, type, at, body, context, checksum from event order by run, sequence"
        ):
            events.setdefault(run, []).append(tuple(row))
        if events != {run: rows for run, rows in disk.events.items() if rows}:
            return "history"
        tasks: dict[int, dict[str, bytes]] = {}
        for workflow, id, body in connection.execute("select workflow, id, body from task"):
            tasks.setdefault(workflow, {})[id] = body
        if tasks != {workflow: rows for workflow, rows in disk.tasks.items() if rows}:
            return "tasks"
        sends = [key for (key,) in connection.execute("select key from send order by key")]
        if sends != sorted(disk.sends):
            return "sends"
        commands = sum(len(rows) for rows in disk.commands.values())
        if connection.execute("select count(*) from command").fetchone() != (commands,):
            return "commands"
        runs = connection.execute("select key, status, closed_reason, length from run order by key").fetchall()
        if runs != [(r.key, r.status, r.closed_reason, r.length) for _, r in sorted(disk.runs.items())]:
            return "runs"
        return None


def _stored(row: InstanceRow) -> tuple[Any, ...]:
    """An instance as the file keeps it."""
    *values, held = astuple(row)
    return (*values, pack_buffered(list(held)) if held else None)


class FileStore(SqliteStore):
    def __init__(self, sim: Simulation, files: Files, kinds: dict[str, type[Event]], seam: Seam) -> None:
        self._sim = sim
        self._files = files
        self._seam = seam
        super().__init__(files.path, kinds, None)

    def apply(self, decisions: Sequence[Decision], done: Callable[[Applied], None]) -> None:
        self._seam.commit(self, decisions, done)

    def write(self, decisions: Sequence[Decision], broken: frozenset[int] = frozenset()) -> Applied:
        sim = self._sim
        cut = sim.faults.fires("power cut")
        before = (self._files.read(""), self._files.read("-wal")) if cut else (b"", b"")
        results: list[Applied] = []
        super().apply(decisions, results.append)
        (applied,) = results
        if applied.down is not None:
            return applied
        there = self._files.cut(before, decisions) if cut else True
        for position, decision in enumerate(decisions):
            committed = position not in applied.stale and position not in applied.failed
            if committed and there and not sim.disk.apply(decision, False):
                sim.violation("I14 the file agrees with the model", (position, applied))
        return applied

    def lose_connection(self) -> None:
        self.writer.close()

    def lose_answer(self, decisions: Sequence[Decision]) -> bool:
        return False

    def cut(self) -> None:
        self.close()

    def probe(self) -> Any:
        error = self._seam.probe(self)
        return Ready(error) if error is not None else super().probe()

    def undisturbed(self) -> bool:
        return False  # the times of files are those of the real clock

    def changed(self) -> Ready[bool]:
        return Ready(False) if self._seam.misses() else super().changed()


def _asking(name: str) -> Any:
    verb = getattr(SqliteStore, name)

    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._seam.read(self)
        return verb(self, *args, **kwargs)

    return read


for _name in READS:
    setattr(FileStore, _name, _asking(_name))
