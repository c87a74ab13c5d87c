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
from typing import Any

from .link.mutants import LINK_MUTANTS
from .mutation import Mutant, mutate
from .node_link_mutants import NODE_LINK_MUTANTS
from .poll_mutants import POLL_MUTANTS
from .shard_mutants import SHARD_MUTANTS

ROOT = Path(__file__).parent.parent.parent
CAUGHT = Path(__file__).parent / "caught.json"
"""Mutant -> the seed that caught it last."""


MUTANTS = [
    # what the simulator itself has found, undone
    Mutant(
        "bounded groups are handed out again",
        "backstay.kernel.machine:Machine.fold",
        "run.part(Groups).clear_effects()",
        "",
    ),
    Mutant(
        "whoever starts a run defines it",
        "backstay.sdk.replay.live_run:LiveRun.adopt",
        "self.leading = [AdoptDefinition(definition=definition)]",
        "pass",
        often=("other build", "rolling restart"),
    ),
    Mutant(
        "a refusal is told from memory",
        "backstay.engine.core.refusals:Refusals._confirmed",
        "last == decided_on",
        "True",
    ),
    Mutant(
        "a query does not wait for signals",
        "backstay.engine.requests.queries:Queries.query",
        "request.after_signals and loaded is not None and _unseen_signals(loaded, request.run_id)",
        "False",
    ),
    Mutant(
        "an update does not wait for signals",
        "backstay.engine.requests.workflow_commands:WorkflowCommands._ask_for_update",
        "patient = request.after_signals",
        "patient = False",
    ),
    Mutant(
        "unmet signals count as applied",
        "backstay.sdk.worker.executor:WorkerExecutor.report",
        "seen_until=live_run.ended_at",
        "seen_until=None",
    ),
    Mutant(
        "an update behind the end",
        "backstay.sdk.replay.reactions:settle",
        "task.resume.workflow_update_id is not None and live_run.closing is None",
        "task.resume.workflow_update_id is not None",
    ),
    Mutant(
        "a command decided again forgets its first try",
        "backstay.engine.core.idempotency:submit_late",
        "message.idempotency_key() is None",
        "True",
    ),
    Mutant(
        "older code got past a change",
        "backstay.sdk.author.primitives:_reach",
        "passed or not (marked or fresh)",
        "not (marked or fresh)",
    ),
    Mutant(
        "a mixed history is replayed",
        "backstay.engine.tasks.inline:InlineCode._replay",
        "whole and whole[-1].checksum != run.checksum",
        "False",
        often=("conflict", "evicted", "ambiguous error"),
        only=("conflict", "evicted", "ambiguous error", "slow commit"),
    ),
    Mutant(
        "coming up is not gone through again",
        "backstay.engine.recovery:Recovery._needs_probe",
        "engine.down is not None or (engine.holder and bool(self._unread))",
        "engine.down is not None",
        often=("recovery error", "join", "kill"),
    ),
    Mutant(
        "a start relies on one that is not yet written",
        "backstay.engine.core.lookup:InstanceLookup._found",
        "address_late(engine, (namespace, id), message, reply)",
        "submit_late(engine, engine.cache.named(namespace, id) or 0, message, reply)",
        often=("statement error", "request twice"),
    ),
    Mutant("sends overtake each other", "backstay.engine.core.outbox:Outbox.dispatch", "len(queue) == 1", "True"),
    Mutant(
        "a group that is all of another loses its bound",
        "backstay.kernel.groups:join",
        "entry.parallel_group_limit is not None",
        "False",
    ),
    # guards and commits
    Mutant(
        "a stale decision is not decided again",
        "backstay.engine.core.rollback:Rollback.discard",
        "[(message, reply) for item in items for message, reply, _, again in item.messages if again]",
        "[]",
    ),
    Mutant("answers before the commit", "backstay.engine.core.engine:Engine._answer", "entry.inflight", "False"),
    Mutant(
        "state survives a failed commit",
        "backstay.engine.core.rollback:Rollback.go_down",
        "engine.discard_cached(entry)",
        "",
    ),
    Mutant(
        "given-up code reports",
        "backstay.sdk.worker.executor:WorkerExecutor.finish_held",
        "self._live_runs.get(assignment.run_key) is not live_run",
        "False",
    ),
    Mutant(
        "the rows of a task are believed",
        "backstay.kernel.features.workflow_task.expected:expect",
        "instance.running_task is not None and instance.running_task == due_task_id(instance)",
        "instance.running_task is not None",
    ),
    Mutant(
        "the index is believed",
        "backstay.engine.requests.api:Api._ended",
        "run.is_open",
        "loaded.run.closed_reason is None",
    ),
    Mutant(
        "stopping spins",
        "backstay.engine.core.commits:Commits._end_of_batch",
        "self._uncommitted.call_at_end(ended)",
        "self.world.soon(lambda: ended.set_result(None))",
    ),
    Mutant(
        "over the wire nothing is unmet",
        "backstay.protocol.worker_messages:message_of",
        "seen_until=verb.met",
        "seen_until=None",
    ),
    Mutant(
        "deferred reports are lost",
        "backstay.engine.core.rollback:Rollback.refuse_or_defer",
        "self._deferred.append((key, message))",
        "",
        often=("store down", "ambiguous error", "slow commit"),
    ),
    Mutant(
        "a poll waits for a lease that was lost",
        "backstay.engine.tasks.dispatch:Dispatcher.end_poll",
        "world.at(world.now() + LAST_COMMIT, lambda: self._answer_empty(poll))",
        "",
        far=True,
        often=("slow commit", "disk full", "store down"),
    ),
    Mutant(
        "room is not given back", "backstay.engine.core.rollback:Rollback.release_slots", "executor.give_back(task)", ""
    ),
    # liveness
    Mutant(
        "a dropped wake",
        "backstay.engine.core.engine:Engine.seal",
        "self.timers.set(entry.instance.key, entry.instance.next_wake)",
        "",
    ),
    Mutant(
        "leases of the dead are kept",
        "backstay.kernel.features.reconcile:_lease_is_over",
        'return owner is None or (incarnation is not None and owner.partition("/")[0] != incarnation)',
        "return False",
    ),
    Mutant(
        "a repair ends what the owner has given meanwhile",
        "backstay.engine.requests.workflow_commands:WorkflowCommands._living",
        "return None",
        "return self._engine.incarnation",
        far=True,
        only=("late report", "slow commit", "request twice", "conflict", "poison"),
        also=(
            "backstay.engine.core.loading:Loading._fold",
            "message.beside_owner()",
            "message",
        ),
    ),
    Mutant(
        "what is restored counts from one again",
        "backstay.kernel.features.workflow_task.expected:_task",
        "0 if own_task_events else instance.attempts",
        "0",
    ),
    Mutant(
        "nothing lost is restored",
        "backstay.kernel.features.reconcile:reconcile",
        "turn.put_task(replace(task, repair_count=1))",
        "",
    ),
    Mutant("what is not expected stays", "backstay.kernel.features.reconcile:reconcile", "turn.drop_task(id)", ""),
    Mutant(
        "the sweep finds no suspects",
        "backstay.engine.core.sweep:Sweep.sweep",
        "suspects, after = await engine.store.mismatched(self._suspects_from, PAGE, shards=shards)",
        "suspects, after = [], None",
    ),
    Mutant(
        "sends are not picked up after a crash",
        "backstay.engine.recovery:Recovery._come_up",
        "await engine.outbox.pick_up(some)",
        "",
    ),
    Mutant(
        "signals to children are not asked after",
        "backstay.kernel.features.child.signalling:ask_after",
        "_ask(turn, child, child.signals)",
        "",
    ),
    Mutant(
        "signals that are missing count as arrived",
        "backstay.kernel.features.child.child_side:receive_ask_after_signals",
        "[sequence for sequence, request_id in message.request_ids.items() if request_id not in delivery.known]",
        "[]",
    ),
    Mutant(
        "notices are not read",
        "backstay.engine.cluster.notices:Notices._take",
        "keys = await engine.store.notices(shards=engine.shards())",
        "keys = []",
    ),
    Mutant(
        "waking does not start",
        "backstay.engine.recovery:Recovery._come_up",
        "await engine.timers.start()",
        "",
    ),
    # a database that is far away: what was looked at is older than what is done about it
    Mutant(
        "who waits looks first and watches then",
        "backstay.engine.core.waiters:Waiters.wait",
        "self.add(key, topic, Waiter(answer, check, future))",
        "",
        far=True,
        also=(
            "backstay.engine.core.waiters:Waiters.wait",
            "result = None if to_come else await check()",
            "result = None if to_come else await check()\nself.add(key, topic, Waiter(answer, check, future))",
        ),
        often=("slow commit", "missed notice"),
    ),
    Mutant(
        "who waits remembers what is there behind its check",
        "backstay.engine.core.waiters:Waiters._check",
        "result = await waiter.check()",
        "result = await waiter.check()\nwaiter.seen = (await self._moved({key: -1})).get(key)",
        far=True,
    ),
    Mutant(
        "who was said something to before it was lost is forgotten",
        "backstay.engine.core.rollback:Rollback.discard",
        "creates = unborn or any(item.turn.after == 0 for item in items)",
        "creates = False",
        far=True,
        often=("statement error", "conflict", "request twice"),
    ),
    Mutant(
        "a second try is not answered by the record",
        "backstay.engine.core.rollback:Rollback._answer_by_record",
        "record is None",
        "True",
        far=True,
    ),
    Mutant(
        "a report that nobody waits for is refused for good",
        "backstay.engine.core.engine:Engine._answer",
        "reply is not None or again",
        "reply is not None",
        far=True,
        often=("conflict", "falsely dead", "late report"),
    ),
    Mutant(
        "a task that is tried again waits for the clock of before",
        "backstay.kernel.features.workflow_task.backoff:revive",
        "created_at=turn.now",
        "created_at=task.created_at",
        far=True,
        often=("clock step", "other build", "clock"),
    ),
    # fences and attempts
    Mutant("crashes have no bound", "backstay.kernel.features.activity.crashes:_crashed", "crashes <= bound", "True"),
    Mutant(
        "a lost lease is no crash",
        "backstay.kernel.features.lease:_expire",
        "turn.features.lease_lost(turn, turn.instance.tasks[task_id])",
        "turn.release(turn.instance.tasks[task_id])",
    ),
    Mutant(
        "a row offers what is running",
        "backstay.kernel.features.activity.schedule:serves",
        'return not (execution.running and task.state == "ready")',
        "return True",
        often=("task falsified",),
    ),
    Mutant(
        "who never reported was never given it", "backstay.kernel.features.activity.crashes:lost", "not begun", "True"
    ),
    Mutant(
        "a missing fence on activities",
        "backstay.kernel.features.activity.attempts:_is_current",
        "if not execution.running or execution.attempt != attempt:\n    return False\nif owner is not None and execution.owner != owner:\n    return False",
        "",
    ),
    Mutant(
        "a row outvotes the history of an attempt",
        "backstay.kernel.features.activity.attempts:_is_current",
        "return until > now",
        'return task.state == "leased" and until > now',
        often=("task falsified", "late report"),
    ),
    Mutant("giving up is an outcome", "backstay.kernel.features.activity.attempts:fail", "message.gave_up", "False"),
    Mutant(
        "an attempt of another counts",
        "backstay.kernel.turn:Turn.require_lease",
        "task.attempt != attempt",
        "False",
        often=("lease runs out", "worker dies", "drain"),
    ),
    Mutant(
        "a lease counts no attempt",
        "backstay.kernel.turn:Turn.grant",
        "attempt=task.attempt + 1",
        "attempt=task.attempt",
    ),
    Mutant(
        "an expired lease still counts",
        "backstay.kernel.turn:Turn.require_lease",
        "task.until is not None and task.until <= self.now",
        "False",
    ),
    Mutant(
        "an off-by-one in the retries",
        "backstay.kernel.retry:RetryPolicy.backoff",
        "steps[min(failures - 1, len(steps) - 1)]",
        "steps[failures]",
    ),
    # features
    Mutant(
        "a timer fires twice", "backstay.kernel.features.timer:_fired", "timers.pending.pop(event.sequence, None)", ""
    ),
    Mutant(
        "an off-by-one in the barrier",
        "backstay.kernel.groups:full",
        "len(group.open) >= group.limit",
        "len(group.open) > group.limit",
    ),
    Mutant(
        "one more is handed out",
        "backstay.kernel.groups:held_back",
        "islice(group.open, group.limit)",
        "islice(group.open, group.limit + 1)",
    ),
    Mutant("signals are not carried on", "backstay.kernel.features.signal:FEATURE", "carry=_carry", ""),
    Mutant("updates are not carried on", "backstay.kernel.features.update:FEATURE", "carry=_carry", ""),
    Mutant(
        "facts held in a task are dropped",
        "backstay.kernel.machine:Machine._record_buffered",
        "turn.record_with_context(event, context)",
        "",
    ),
    Mutant("a signal wakes nobody", "backstay.kernel.features.signal:FEATURE", "resume={SignalReceived: _wake}", ""),
    Mutant(
        "a signal is heard twice",
        "backstay.kernel.features.signal:_applied",
        "signals.received.pop(event.signal_id, None)",
        "",
    ),
    Mutant(
        "a repeated command is done again",
        "backstay.kernel.features.instance_commands:answer_retry",
        "before is None",
        "True",
    ),
    Mutant(
        "the cursor stays behind",
        "backstay.kernel.features.workflow_task.completion:_close",
        "turn.instance.cursor = task.seen",
        "",
    ),
    Mutant(
        "the cursor runs ahead",
        "backstay.kernel.features.workflow_task.completion:_close",
        "turn.instance.cursor = task.seen",
        "turn.instance.cursor = turn.run.length",
    ),
    Mutant(
        "a paused run gets tasks",
        "backstay.kernel.machine:Machine._find_ready",
        "not allows(turn.run)",
        "False",
    ),
    Mutant("the index lags behind", "backstay.kernel.machine:Machine.seal", "turn.index_now()", ""),
    Mutant(
        "checksums are not looked at",
        "backstay.kernel.event:restore",
        "checksum != chain(previous[1], sequence, type_name, at, body, context_body)",
        "False",
    ),
    Mutant(
        "decided_after is forgotten",
        "backstay.kernel.features.workflow_task.completion:complete",
        "turn.context = context_of(task)",
        "",
    ),
    Mutant("a window is never refilled", "backstay.kernel.groups:leave", "groups.freed.append(freed)", ""),
    Mutant(
        "an activity's end wakes nobody",
        "backstay.kernel.features.activity:_wake_unless_local",
        "event.local_activity",
        "event.local_activity or isinstance(event, ActivityCompleted)",
    ),
]

MUTANTS += SHARD_MUTANTS + NODE_LINK_MUTANTS + POLL_MUTANTS + LINK_MUTANTS


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


def options(mutant: Mutant) -> dict[str, Any]:
    """What it is hunted with."""
    given: dict[str, Any] = {"often": mutant.often} if mutant.often else {}
    if mutant.only:
        given["faults"] = mutant.only
    if mutant.link:
        given |= {"link": True, "operations": 100, "published": mutant.published}
    else:
        given["links"] = mutant.links
    return given | {"far": True} if mutant.far else given


def hunt(mutant: Mutant, seeds: list[int]) -> tuple[Mutant, int | None, str]:
    """Which of these seeds catches it first, and by which law."""
    with tempfile.TemporaryDirectory(prefix="backstay-mutant-") as place:
        sources = Path(place) / "src"
        shutil.copytree(ROOT / "src", sources)  # with what is compiled: it knows the time of its source
        for file, text in mutate(mutant, sources).items():
            file.write_text(text)
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
