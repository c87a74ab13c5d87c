"""Deliberate bugs in how tasks come to polls, here and elsewhere, and in what becomes of the reports of those who poll."""

from __future__ import annotations

from .mutation import Mutant

POLL_MUTANTS = [
    Mutant(
        "fetch without holding back",
        "backstay.engine.parked_polls:ParkedPolls.hold",
        "self.unpark(poll)",
        "",
        links=True,
        only=("slow commit", "evicted", "worker fails", "storm", "join"),
    ),
    Mutant(
        "a poll that is held back gets another task",
        "backstay.engine.parked_polls:ParkedPolls.hold",
        "self.unpark(poll)",
        "",
        link=True,
        published=True,
        only=("slow segment", "slow commit", "stall"),
    ),
    Mutant(
        "a repeated poll is a new one",
        "backstay.engine.worker_api:WorkerApi._poll",
        "again is not None",
        "False",
        link=True,
        published=True,
        often=("reply lost",),
    ),
    Mutant(
        "nobody notices who has hung up",
        "backstay.server.published.worker.polls:parked_wait",
        "None if done.cancelled() else me.cancel()",
        "None",
        link=True,
        published=True,
        only=("kill worker", "another name", "request lost", "kill in activity"),
        often=("kill worker",),
    ),
    Mutant(
        "nobody is told that tasks wait",
        "backstay.engine.task_news:TaskNews._round",
        "self._tell_of(queue, count, waiting, others, now)",
        "pass",
        link=True,
        published=True,
    ),
    Mutant(
        "a poll that is held back waits for nothing more",
        "backstay.engine.fetching:Fetching._end",
        "matching.polls.resume(poll)",
        "False",
        link=True,
        published=True,
    ),
    Mutant(
        "a poll does not wait",
        "backstay.engine.worker_api:WorkerApi._poll",
        "engine.world.now() + round(wait_seconds * SECOND)",
        "engine.world.now()",
        link=True,
        published=True,
    ),
    Mutant(
        "a poll waits for ever",
        "backstay.engine.worker_api:WorkerApi._poll",
        "engine.dispatcher.end_poll(poll)",
        "None",
        link=True,
        published=True,
    ),
    Mutant(
        "who repeats a completion is refused",
        "backstay.engine.worker_api:WorkerApi._complete",
        "before is not None",
        "False",
        link=True,
        published=True,
        often=("reply lost",),
    ),
    Mutant(
        "who repeats the report of an attempt is refused",
        "backstay.engine.worker_api:WorkerApi._end_attempt",
        "ended_attempt(history, attempt, message.owner) or _raise(refusal)",
        "_raise(refusal)",
        link=True,
        published=True,
        often=("reply lost",),
    ),
]
