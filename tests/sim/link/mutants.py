"""Deliberate bugs of the link, each of which its simulation must catch; see `mutants.py` of the simulator.

The first three are what real use has found, undone; the next two are what the simulation has found.
"""

from __future__ import annotations

from typing import Any

LINK_MUTANTS: list[dict[str, Any]] = [
    {
        "name": "the answer to a late heartbeat cannot be read",
        "file": "sdk/activities.py",
        "old": "attempt.cancel(stale=not reply.cancel_requested)",
        "new": "attempt.cancel(stale=not reply.cancelled)",
    },
    {
        "name": "code goes on with a result that is too large",
        "file": "sdk/remote/reports.py",
        "old": "        breach = self._bounds.over(message.result)\n",
        "new": "        breach = None\n",
        "also": (
            "kernel/features/workflow_task/outcomes.py",
            'message.seen == seen and woken == (seen, "ActivityCompleted", message.result_of)',
            "message.seen == seen",
        ),
    },
    {
        "name": "the reply to a poll makes reports forgotten",
        "file": "sdk/remote/session.py",
        "old": "        for pending, answer in zip(batch, answers, strict=True):\n",
        "new": "        if not batch:\n            self._outgoing._out.clear()\n        for pending, answer in zip(batch, answers, strict=True):\n",
    },
    {
        "name": "an answer ends the next attempt of its task",
        "file": "sdk/remote/host.py",
        "old": "self.leases.get(task_id) == pending.report.attempt",
        "new": "task_id in self.leases",
        "often": ("reply lost", "store down", "busy"),
    },
    {
        "name": "live code goes on after what another worker decided",
        "file": "server/stations.py",
        "old": "if reached and not passed and (",
        "new": "if reached and (",
        "often": ("request lost", "stop worker"),
    },
    {
        "name": "what nobody claims after a restart is kept",
        "file": "server/stations.py",
        "old": "BATCHES in worker.capabilities:\n                server.release(task)",
        "new": "BATCHES in worker.capabilities:\n                pass",
        "often": ("kill everybody", "another name"),
    },
    {
        "name": "an engine that comes up waits for no worker",
        "file": "engine/recovery.py",
        "old": "wait_for_workers(now, now + COME_BACK)",
        "new": "wait_for_workers(now, now)",
        "often": ("restart server",),
    },
    {
        "name": "nobody is told that an attempt is over",
        "file": "engine/engine.py",
        "old": "if decision.withdrawn and not decision.closed:",
        "new": "if False:",
    },
    {
        "name": "what is out is lost with its connection",
        "file": "sdk/remote/session.py",
        "old": "        self._outgoing.lost()\n",
        "new": "        self._outgoing._out.clear()\n",
    },
    {
        "name": "what could not be written is not said again",
        "file": "sdk/remote/session.py",
        "old": "                self.host.later(AGAIN, partial(self._outgoing.again, pending))\n",
        "new": "",
    },
    {
        "name": "tasks that waited are dropped",
        "file": "sdk/remote/tasks.py",
        "old": "        for lease in self._held_back.pop(run, ()):",
        "new": "        for lease in self._held_back.pop(run, ())[:0]:",
    },
    {
        "name": "a worker keeps what it does not hold",
        "file": "server/stations.py",
        "old": "        for task in leased.values():\n            self.server.release(task, begun=task.id not in unheard)\n",
        "new": "",
    },
    {
        "name": "nobody notices that a worker is gone",
        "file": "server/stations.py",
        "old": "if self._parked is not None or self.closed or self.server.draining:",
        "new": "if True:",
        "often": ("another name", "kill in activity"),
    },
    {
        "name": "a window is asked for once",
        "file": "sdk/group.py",
        "old": "self._open <= window // 2 and",
        "new": "False and",
    },
    {
        "name": "slots leak",
        "file": "engine/stations.py",
        "old": "                self.give_back(change.task_id)\n                freed",
        "new": "                freed",
    },
    {
        "name": "leases on their way count for nothing",
        "file": "server/admission.py",
        "old": "+ sum(not leases.has(task_id) for task_id in self._promised.get(queue, ()))",
        "new": "",
    },
    {
        "name": "where there is room again only polls are served",
        "file": "engine/matching.py",
        "old": "            any(station.takes(lane) for station in stations)\n            or any(",
        "new": "            any(",
    },
    {
        "name": "the next minute serves nobody",
        "file": "server/admission.py",
        "old": "            self._engine.serving.vacant(queues)\n",
        "new": "",
    },
    {
        "name": "a server that is gone is hammered",
        "file": "sdk/remote/session.py",
        "old": "            await asyncio.sleep(self._pause * (0.5 + random() / 2))\n",
        "new": "            await asyncio.sleep(0)\n",
    },
]
