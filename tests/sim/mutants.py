"""The simulator simulated: deliberate one-line bugs, one at a time, each of which it must catch.

    python -m tests.sim.mutants [--seeds 100] [--only NAME] [--remember]

The bugs are put into a copy of the sources; the working tree is never touched. A seed that caught one is tried first the next
time (`caught.json`, written with `--remember`): it spares the search as long as the world is the same, and proves nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from .link.mutants import LINK_MUTANTS

ROOT = Path(__file__).parent.parent.parent
CAUGHT = Path(__file__).parent / "caught.json"
"""Mutant -> the seed that caught it last."""


class Mutant(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    far: bool = False  # hunted with a database that is far away
    link: bool = False  # hunted between workers and servers
    also: tuple[str, str, str] | None = None  # file, old, new: where two lines guard against the same thing
    often: tuple[str, ...] = ()  # faults that it is hunted with, among others
    only: tuple[str, ...] = ()  # the only faults that it is hunted with


K = "kernel/features"
MUTANTS = [
    # what the simulator itself has found, undone
    Mutant("bounded groups are handed out again", "kernel/machine.py", "run.part(Groups).settled()", "pass"),
    Mutant(
        "a query does not wait for signals",
        "engine/inquiries.py",
        "if request.after_signals and loaded is not None",
        "if False and loaded is not None",
    ),
    Mutant(
        "an update does not wait for signals",
        "engine/commands.py",
        "patient = request.after_signals",
        "patient = False",
    ),
    Mutant("unmet signals count as applied", "sdk/executor.py", "met=fiber.ended_at", "met=None"),
    Mutant("an update behind the end", "sdk/rules.py", " and fiber.closing is None", ""),
    Mutant(
        "a command decided again forgets its first try",
        "engine/recalling.py",
        "    if message.repeats() is None:\n        engine.submit(key, message, reply)",
        "    if True:\n        engine.submit(key, message, reply)",
    ),
    Mutant(
        "older code got past a change",
        "sdk/primitives.py",
        "if passed or not (marked or fresh)",
        "if not (marked or fresh)",
    ),
    Mutant(
        "a mixed history is replayed",
        "engine/inline.py",
        "        if whole and whole[-1].checksum != run.checksum:\n            return COLD",
        "        if False:\n            return COLD",
        often=("conflict", "evicted", "ambiguous error"),
        only=("conflict", "evicted", "ambiguous error", "slow commit"),
    ),
    Mutant(
        "coming up is not gone through again",
        "engine/recovery.py",
        "self._engine.holder and not self._up and",
        "False and",
    ),
    Mutant("sends overtake each other", "engine/sending.py", "if len(queue) == 1:", "if True:"),
    Mutant(
        "a group that is all of another loses its bound",
        "kernel/groups.py",
        "        elif entry.parallel_group_limit is not None:",
        "        elif False:",
    ),
    # guards and commits
    Mutant(
        "a stale decision is not decided again",
        "engine/losses.py",
        "item.asked if again]",
        "item.asked if False]",
    ),
    Mutant(
        "answers before the commit",
        "engine/engine.py",
        "if entry.inflight:\n            if reply is not None or again:",
        "if False:\n            if reply is not None or again:",
    ),
    Mutant(
        "state survives a failed commit",
        "engine/losses.py",
        "            engine.cache.drop(entry)\n            engine.forget_code(entry)\n            self._undo(item)",
        "            self._undo(item)",
    ),
    Mutant(
        "given-up code reports",
        "sdk/executor.py",
        "        if self._fibers.get(assignment.run_key) is not fiber:\n            self.host.given_up(",
        "        if False:\n            self.host.given_up(",
    ),
    Mutant(
        "the rows of a task are believed",
        f"{K}/workflow_task/due.py",
        "    if flow.busy is not None and flow.busy == due_id(flow):",
        "    if flow.busy is not None:",
    ),
    Mutant(
        "the index is believed",
        "engine/operations.py",
        "        if run.open:",
        "        if loaded.run.closed_reason is None:",
    ),
    Mutant(
        "stopping spins",
        "engine/engine.py",
        "            self._draining.append(ended)",
        "            self.world.soon(lambda: ended.set_result(None))",
    ),
    Mutant("over the wire nothing is unmet", "engine/bridge.py", "met=request.met", "met=None"),
    Mutant(
        "deferred reports are lost",
        "engine/losses.py",
        "            self._deferred.append((key, message))",
        "            pass",
    ),
    Mutant(
        "a poll waits for a lease that was lost",
        "engine/serving.py",
        "world.at(world.now() + MOMENT, lambda: self._dismiss(waiter))",
        "pass",
        far=True,
        often=("slow commit", "disk full", "store down"),
    ),
    Mutant("room is not given back", "engine/losses.py", "executor.give_back(task)", "pass"),
    # liveness
    Mutant(
        "a dropped wake",
        "engine/engine.py",
        "            self.waking.set(entry.flow.key, entry.flow.next_wake)",
        "            pass",
    ),
    Mutant(
        "leases of the dead are kept",
        f"{K}/reconcile.py",
        'return owner is None or owner.partition("/")[0] != incarnation',
        "return False",
    ),
    Mutant(
        "nothing lost is restored",
        f"{K}/reconcile.py",
        "        turn.put(replace(task, repair_count=1))",
        "        pass",
    ),
    Mutant(
        "what is not expected stays",
        f"{K}/reconcile.py",
        "            turn.drop(id)\n            result.dropped",
        "            result.dropped",
    ),
    Mutant(
        "the sweep finds no suspects",
        "engine/recovery.py",
        "suspects, after = await engine.store.suspects(self._sweep_from, PAGE)",
        "suspects, after = [], None",
    ),
    Mutant(
        "sends are not picked up after a crash",
        "engine/recovery.py",
        "(self._recover, self._engine.sending.pick_up, self._engine.waking.start)",
        "(self._recover, self._engine.waking.start)",
    ),
    Mutant(
        "signals to children are not asked after",
        f"{K}/child/signalling.py",
        "    if child.signals:\n",
        "    if False:\n",
    ),
    Mutant(
        "signals that are missing count as arrived",
        f"{K}/child/offspring.py",
        "if request_id not in message.known]",
        "if False]",
    ),
    Mutant("notices are not read", "engine/recovery.py", "keys = await engine.store.notices()", "keys = []"),
    Mutant(
        "waking does not start",
        "engine/recovery.py",
        "(self._recover, self._engine.sending.pick_up, self._engine.waking.start)",
        "(self._recover, self._engine.sending.pick_up)",
    ),
    # a database that is far away: what was looked at is older than what is done about it
    Mutant(
        "who waits looks first and watches then",
        "engine/waiting.py",
        "        self.watch(key, topic, future, answer, look)\n        try:\n            found = None if to_come else await look()",
        "        try:\n            found = None if to_come else await look()\n            self.watch(key, topic, future, answer, look)",
        far=True,
    ),
    Mutant(
        "who was said something to before it was lost is forgotten",
        "engine/losses.py",
        "        unborn = any(item.turn.after == 0 for item in items)",
        "        unborn = False",
        far=True,
    ),
    Mutant(
        "a second try is not answered by the record",
        "engine/losses.py",
        "        if record is None:\n            self._refuse(flow, reply, error)",
        "        if True:\n            self._refuse(flow, reply, error)",
        far=True,
    ),
    Mutant(
        "a report that nobody waits for is refused for good",
        "engine/engine.py",
        "            if reply is not None or again:\n",
        "            if reply is not None:\n",
        far=True,
    ),
    Mutant(
        "a task that is tried again waits for the clock of before",
        f"{K}/workflow_task/failed.py",
        "            created_at=turn.now,",
        "            created_at=task.created_at,",
        far=True,
    ),
    # fences and attempts
    Mutant("crashes have no bound", f"{K}/activity/crashes.py", "if crashes <= bound:", "if True:"),
    Mutant(
        "a lost lease is no crash",
        f"{K}/lease.py",
        "turn.machine.lost(turn, turn.flow.tasks[task_id])",
        "turn.release(turn.flow.tasks[task_id])",
    ),
    Mutant(
        "a row offers what is running",
        f"{K}/activity/schedule.py",
        '    return not (execution.running and task.state == "ready")',
        "    return True",
    ),
    Mutant(
        "who never reported was never given it",
        f"{K}/activity/crashes.py",
        "    elif not begun:",
        "    elif True:",
    ),
    Mutant(
        "a missing fence on activities",
        f"{K}/activity/attempts.py",
        "    if not execution.running or execution.attempt != attempt:\n        return False\n"
        "    if owner is not None and execution.owner != owner:\n        return False\n",
        "",
    ),
    Mutant(
        "a row outvotes the history of an attempt",
        f"{K}/activity/attempts.py",
        "    return until > now\n",
        '    return task.state == "leased" and until > now\n',
    ),
    Mutant("giving up is an outcome", f"{K}/activity/attempts.py", "    if message.gave_up:\n", "    if False:\n"),
    Mutant(
        "an attempt of another counts",
        "kernel/turn.py",
        "        if task.attempt != attempt:",
        "        if False:",
        often=("lease runs out", "worker dies", "drain"),
    ),
    Mutant("a lease counts no attempt", f"{K}/lease.py", "attempt=task.attempt + 1", "attempt=task.attempt"),
    Mutant(
        "an expired lease still counts",
        "kernel/turn.py",
        "        if task.until is not None and task.until <= self.now:",
        "        if False:",
    ),
    Mutant(
        "an off-by-one in the retries", "kernel/retry.py", "steps[min(failures - 1, len(steps) - 1)]", "steps[failures]"
    ),
    # features
    Mutant(
        "a timer fires twice",
        f"{K}/timer.py",
        "    timers = run.part(Timers)\n    timers.pending.pop(event.sequence, None)\n",
        "    timers = run.part(Timers)\n",
    ),
    Mutant(
        "an off-by-one in the barrier",
        "kernel/groups.py",
        "len(group.open) >= group.limit",
        "len(group.open) > group.limit",
    ),
    Mutant(
        "one more is handed out",
        "kernel/groups.py",
        "        if group.limit is not None and step not in islice(group.open, group.limit):",
        "        if group.limit is not None and step not in islice(group.open, group.limit + 1):",
    ),
    Mutant("signals are not carried on", f"{K}/signal.py", "    carry=_carry,\n", ""),
    Mutant("updates are not carried on", f"{K}/update.py", "    carry=_carry,\n", ""),
    Mutant(
        "facts held in a task are dropped",
        "kernel/machine.py",
        "                turn.record_as(event, context)",
        "                pass",
    ),
    Mutant("a signal wakes nobody", f"{K}/signal.py", "    resume={SignalReceived: _wake},\n", ""),
    Mutant("a signal is heard twice", f"{K}/signal.py", "    signals.received.pop(event.signal_id, None)", "    pass"),
    Mutant(
        "a repeated command is done again",
        f"{K}/intake.py",
        "    if before is None:\n        return False",
        "    if True:\n        return False",
    ),
    Mutant(
        "the cursor stays behind",
        f"{K}/workflow_task/outcomes.py",
        "        turn.flow.cursor = task.seen",
        "        pass",
    ),
    Mutant(
        "the cursor runs ahead",
        f"{K}/workflow_task/outcomes.py",
        "        turn.flow.cursor = task.seen",
        "        turn.flow.cursor = turn.run.length",
    ),
    Mutant("a paused run gets tasks", "kernel/machine.py", "if not pause.allows(turn.run):", "if False:"),
    Mutant("the index lags behind", "kernel/machine.py", "            turn.index_now()", "            pass"),
    Mutant(
        "checksums are not looked at",
        "kernel/event.py",
        "    if checksum != chain(",
        "    if False and checksum != chain(",
    ),
    Mutant(
        "decided_after is forgotten",
        f"{K}/workflow_task/outcomes.py",
        "    turn.context = lease.context(task)\n    if not apart:",
        "    if not apart:",
    ),
    Mutant(
        "a window is never refilled",
        "kernel/groups.py",
        "                groups.freed.append(freed)",
        "                pass",
    ),
    Mutant(
        "an activity's end wakes nobody",
        f"{K}/activity/__init__.py",
        "ActivityCompleted: _wake_unless_local",
        "ActivityHeartbeatRecorded: _wake_unless_local",
    ),
]

MUTANTS += [Mutant(**mutant, link=True) for mutant in LINK_MUTANTS]


SCRIPT = """
import json
import sys
from tests.sim.runner import report
options = json.loads(sys.argv[1])
for seed in map(int, sys.argv[2:]):
    try:
        law = report(seed, options).law
    except BaseException as error:
        law = f"crashed {error!r}"[:80]
    if law:
        print(seed, law)
        break
"""


def made(mutant: Mutant, sources: Path) -> dict[str, str]:
    """The files with the bug in them."""
    found: dict[str, str] = {}
    for file, old, new in ((mutant.file, mutant.old, mutant.new), *((mutant.also,) if mutant.also else ())):
        text = found.get(file) or (sources / file).read_text()
        if text.count(old) != 1:
            raise ValueError(f"{mutant.name!r} cannot be made: its line is {text.count(old)} times in {file}")
        found[file] = text.replace(old, new)
    return found


def options(mutant: Mutant) -> dict[str, Any]:
    """What it is hunted with."""
    given: dict[str, Any] = {"often": mutant.often} if mutant.often else {}
    if mutant.only:
        given["faults"] = mutant.only
    if mutant.link:
        given |= {"link": True, "operations": 100}
    return given | {"far": True} if mutant.far else given


def hunt(mutant: Mutant, seeds: list[int]) -> tuple[Mutant, int | None, str]:
    """Which of these seeds catches it first, and by which law."""
    with tempfile.TemporaryDirectory(prefix="backstay-mutant-") as place:
        sources = Path(place) / "src" / "backstay"
        shutil.copytree(ROOT / "src" / "backstay", sources)  # with what is compiled: it knows the time of its source
        for file, text in made(mutant, sources).items():
            (sources / file).write_text(text)
        environment = {
            **os.environ,
            "PYTHONPATH": f"{place}/src{os.pathsep}{ROOT}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONWARNINGS": "ignore",
        }
        command = [sys.executable, "-c", SCRIPT, json.dumps(options(mutant)), *map(str, seeds)]
        try:
            done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=3600)
        except subprocess.TimeoutExpired:
            return mutant, None, "no verdict: out of time"
        seed, _, law = done.stdout.strip().partition(" ")
        if seed:
            return mutant, int(seed), f"caught by seed {seed}, the {seeds.index(int(seed)) + 1}. tried: {law}"
        if done.returncode:
            return mutant, None, f"no verdict: {(done.stderr.strip().splitlines() or ['it died'])[-1][:100]}"
        return mutant, None, f"SURVIVED {len(seeds)} seeds"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--fresh", action="store_true", help="do not begin with the seed that caught it the last time")
    parser.add_argument("--remember", action="store_true", help="keep which seed caught it")
    given = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if any(part in mutant.name for part in given.only.split(","))]
    known: dict[str, int] = json.loads(CAUGHT.read_text()) if CAUGHT.exists() else {}

    def seeds(mutant: Mutant) -> list[int]:
        hint = [] if given.fresh or mutant.name not in known else [known[mutant.name]]
        return hint + [seed for seed in range(given.first, given.first + given.seeds) if seed not in hint]

    began = time.perf_counter()
    caught = 0
    with ThreadPoolExecutor(given.processes) as pool:
        for mutant, seed, outcome in pool.map(lambda m: hunt(m, seeds(m)), chosen):
            print(f"{mutant.name:48} {outcome}", flush=True)
            if seed is not None:
                caught += 1
                known[mutant.name] = seed
    print(f"{caught} of {len(chosen)} caught in {time.perf_counter() - began:.0f} s")
    if given.remember:
        names = [mutant.name for mutant in MUTANTS if mutant.name in known]
        CAUGHT.write_text(json.dumps({name: known[name] for name in names}, indent=2) + "\n")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
