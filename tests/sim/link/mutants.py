"""Deliberate bugs of the link, each of which its simulation must catch; see `mutants.py` of the simulator.

The first three are what real use has found, undone; the next two are what the simulation has found.
"""

from __future__ import annotations

from ..mutation import Mutant

LINK_MUTANTS = [
    Mutant(
        "the answer to a late heartbeat cannot be read",
        "backstay.sdk.worker.activities:ActivityRunner._beat",
        "attempt.cancel(stale=not reply.cancel_requested)",
        "attempt.cancel(stale=not reply.cancelled)",
        link=True,
    ),
    Mutant(
        "code goes on with a result that is too large",
        "backstay.sdk.remote.reports:Reports._activity_done",
        "breach = self._bounds.breach(message.result)",
        "breach = None",
        link=True,
        also=(
            "backstay.kernel.features.workflow_task.completion:_saw_only_the_result",
            'message.seen == seen and woken == (seen, "ActivityCompleted", message.result_of)',
            "message.seen == seen",
        ),
    ),
    Mutant(
        "the reply to a poll makes reports forgotten",
        "backstay.sdk.remote.worker_link:ServerLink._on_answers",
        "zip(batch, answers, strict=True)",
        "zip(batch or self._reports._sent.clear() or (), answers, strict=True)",
        link=True,
    ),
    Mutant(
        "an answer ends the next attempt of its task",
        "backstay.sdk.remote.host:RemoteHost.on_answered",
        "self.leases.get(task_id) == pending.report.attempt",
        "task_id in self.leases",
        link=True,
        often=("stop worker", "store down", "busy"),
    ),
    Mutant(
        "live code goes on after what another worker decided",
        "backstay.server.native.shown_histories:ShownHistories.from_memory",
        "reached and not passed and (size <= self._page_bytes or len(unseen) == 1)",
        "reached and (size <= self._page_bytes or len(unseen) == 1)",
        link=True,
        often=("stop worker", "slow commit"),
    ),
    Mutant(
        "what nobody claims after a restart is kept",
        "backstay.server.native.worker_links:WorkerLinks._give_up_missing",
        "server.release(task)",
        "",
        link=True,
        often=("kill everybody", "another name"),
    ),
    Mutant(
        "an engine that comes up waits for no worker",
        "backstay.engine.recovery:Recovery._expect_workers",
        "now + COME_BACK",
        "now",
        link=True,
        often=("restart server",),
    ),
    Mutant(
        "nobody is told that an attempt is over",
        "backstay.engine.effects:Effects.carry_out",
        "decision.withdrawn and not decision.closed",
        "False",
        link=True,
        also=(
            "backstay.server.native.worker_link:WorkerLink.renew_held",
            "self._task_withdrawn(held.task_id)",
            "",
        ),
    ),
    Mutant(
        "what is out is lost with its connection",
        "backstay.sdk.remote.worker_link:ServerLink._requeue",
        "self._reports.requeue_sent()",
        "self._reports._sent.clear()",
        link=True,
    ),
    Mutant(
        "what could not be written is not said again",
        "backstay.sdk.remote.worker_link:ServerLink._on_answers",
        "self.host.later(RESEND_AFTER, partial(self._reports.resend, pending))",
        "",
        link=True,
    ),
    Mutant(
        "tasks that waited are dropped",
        "backstay.sdk.remote.tasks:WorkflowTasks.on_report_answered",
        "self._deferred.pop(run, ())",
        "self._deferred.pop(run, ())[:0]",
        link=True,
    ),
    Mutant(
        "a worker keeps what it does not hold",
        "backstay.server.native.worker_link:WorkerLink.open",
        "for task in leased.values():\n    self.server.release(task, begun=task.id not in unheard)",
        "",
        link=True,
    ),
    Mutant(
        "nobody notices that a worker is gone",
        "backstay.server.native.worker_link:WorkerLink._look",
        "self._parked is not None or self.closed or self.server.draining",
        "True",
        link=True,
        often=("another name", "kill in activity"),
    ),
    Mutant(
        "a window is asked for once",
        "backstay.sdk.author.group:GroupRun._answered",
        "window is not None and self._open <= window // 2 and self.root.asked < len(self.leaves)",
        "False",
        link=True,
    ),
    Mutant(
        "slots leak",
        "backstay.engine.remote_workers:RemoteWorkers.on_commit",
        "self.release(change.task_id)",
        "",
        link=True,
    ),
    Mutant(
        "leases on their way count for nothing",
        "backstay.server.admission:QueueAdmission.active",
        "leases.count(queue) + sum(not leases.has(task_id) for task_id in self._promised.get(queue, ()))",
        "leases.count(queue)",
        link=True,
    ),
    Mutant(
        "where there is room again only polls are served",
        "backstay.engine.matching:Matching.has_taker",
        "any(worker.takes(lane) for worker in workers)",
        "False",
        link=True,
    ),
    Mutant(
        "the next minute serves nobody",
        "backstay.server.admission:QueueAdmission._come_back",
        "self._engine.dispatcher.serve_queues(queues)",
        "",
        link=True,
    ),
    Mutant(
        "a server that is gone is hammered",
        "backstay.sdk.remote.worker_link:ServerLink._reopen",
        "await asyncio.sleep(self._pause * (0.5 + random() / 2))",
        "await asyncio.sleep(0)",
        link=True,
    ),
]
