"""The figures of Backstay: which workload tells them, what they may cost, and how they must compare.

`target` is a ratio to another commit, of the figures of each round: at most so much, or at least so much where more is better.
`budget` is absolute. `floor` is how many times better than the best other system it has to be.
"""

from __future__ import annotations

from typing import NamedTuple

EMBEDDED, HTTP = "peer_backstay.py", "peer_backstay_http.py"


class Work(NamedTuple):
    """A workload, run by a new process. `rounds`: at most so many; what hardly differs from round to round, or takes long, needs
    fewer. `systems`: the arguments for other systems, if they are asked."""

    script: str
    arguments: tuple[str, ...]
    rounds: int = 1000
    postgresql: bool = False
    systems: tuple[str, ...] = ()


class Figure(NamedTuple):
    work: str
    label: str
    field: str
    factor: float = 1.0
    more: bool = False  # more is better
    target: float | None = None
    budget: float | None = None
    floor: float | None = None


def _of(script: str, workload: str, *arguments: str, rounds: int = 1000, postgresql: bool = False) -> Work:
    return Work(script, ("--workloads", workload, *arguments), rounds, postgresql)


def _shared(script: str, workload: str, *arguments: str, rounds: int = 1000, postgresql: bool = False) -> Work:
    """One that other systems have as well."""
    return _of(script, workload, *arguments, rounds=rounds, postgresql=postgresql)._replace(
        systems=("--workloads", workload)
    )


ASYNC = "--async-activities"
WORKS = {
    "w1": _shared(EMBEDDED, "w1"),
    "w1-async": _of(EMBEDDED, "w1", ASYNC),
    "w2": _shared(EMBEDDED, "w2", "--w2-one", "1000"),
    "w2-async": _of(EMBEDDED, "w2", "--w2-one", "1000", ASYNC),
    "w3": _shared(EMBEDDED, "w3", "--repeat", "3"),
    "children": _of(EMBEDDED, "children"),
    "w4": _shared(EMBEDDED, "w4"),
    "w5": _shared(EMBEDDED, "w5", "--w5-n", "400"),
    "w6": _shared(EMBEDDED, "w6", "--w6-sleep", "5"),
    "http-w1": _shared(HTTP, "w1"),
    "http-w2": _shared(HTTP, "w2", "--w2-one", "1000"),
    "http-w4": _shared(HTTP, "w4"),
    "http-w5": _shared(HTTP, "w5"),
    "pg-w1": _shared(EMBEDDED, "w1", ASYNC, postgresql=True),
    "pg-w2": _shared(EMBEDDED, "w2", ASYNC, postgresql=True),
    "pg-w3": _shared(EMBEDDED, "w3", postgresql=True),
    "pg-w4": _shared(EMBEDDED, "w4", ASYNC, postgresql=True),
    "pg-w5": _shared(EMBEDDED, "w5", postgresql=True),
    "disk": _of(EMBEDDED, "disk", rounds=2),
    "memory": _shared(EMBEDDED, "w7", rounds=3),
    "idle": _of(HTTP, "idle", rounds=3),
    "pg-idle": _of(HTTP, "idle", rounds=3, postgresql=True),
    "flat": _of(EMBEDDED, "flat", rounds=3),
    "crowd": Work("children.py", (), 2),
    "import": Work("imports.py", (), 5),
    "bytecodes": Work("count.py", (), 1),
}
MICRO = 1000.0  # milliseconds are told

FIGURES = [
    Figure("w1", "W1 hello, CPU us", "w1.cpu_ms_per_op", MICRO, target=0.67, budget=125),
    Figure("w1", "W1 hello, workflows/s", "w1.workflows_s", more=True, floor=6),
    Figure("w1-async", "W1 hello async, CPU us", "w1.cpu_ms_per_op", MICRO, target=0.67, budget=125),
    Figure("w2", "W2 fifty, CPU us a step", "w2.cpu_ms_per_op", MICRO, target=0.70, budget=120),
    Figure("w2", "W2 fifty, steps/s", "w2.parallel_steps_s", more=True, floor=4),
    Figure("w2", "W2 one, CPU us a step", "w2.one_cpu_ms", MICRO),
    Figure("w2", "W2 one, steps/s", "w2.one_steps_s", more=True, target=1.6, floor=3),
    Figure("w2-async", "W2 fifty async, CPU us a step", "w2.cpu_ms_per_op", MICRO, target=0.70),
    Figure("w2-async", "W2 one async, steps/s", "w2.one_steps_s", more=True),
    Figure("w3", "W3 1,000 activities, CPU us each", "w3.cpu_ms_per_op", MICRO, target=0.80),
    Figure("w3", "W3 1,000 activities, s", "w3.wall_s", floor=4),
    Figure("children", "1,000 children, CPU us each", "children.cpu_ms_per_op", MICRO, target=0.80),
    Figure("children", "1,000 children, s", "children.wall_s"),
    Figure("children", "  CPU against ten times 100", "children.against_few", budget=1.2),
    Figure("w4", "W4 hello alone, CPU us", "w4.cpu_ms_per_op", MICRO, target=0.75),
    Figure("w4", "W4 hello alone, p50 ms", "w4.p50_ms", target=0.75, floor=4),
    Figure("w5", "W5 signals, CPU us each", "w5.cpu_ms_per_op", MICRO, target=0.70),
    Figure("w5", "W5 signals/s", "w5.signals_s", more=True, floor=8),
    Figure("w6", "W6 recovery of 1,000, s", "w6.restart_to_all_done_s", budget=0.5, floor=1),
    Figure("w6", "  until it is up, s", "w6.restart_to_up_s"),
    Figure("w6", "  lost", "w6.lost", budget=0),
    Figure("http-w1", "HTTP W1, CPU us", "w1.cpu_ms_per_op", MICRO, target=0.68, budget=700),
    Figure("http-w1", "  server", "w1.cpu_ms.server", MICRO),
    Figure("http-w1", "  worker", "w1.cpu_ms.worker", MICRO),
    Figure("http-w1", "  client", "w1.cpu_ms.client", MICRO),
    Figure("http-w1", "HTTP W1, workflows/s", "w1.workflows_s", more=True, floor=2),
    Figure("http-w2", "HTTP W2 fifty, CPU us a step", "w2.cpu_ms_per_op", MICRO, target=0.68),
    Figure("http-w2", "  server", "w2.cpu_ms.server", MICRO),
    Figure("http-w2", "  worker", "w2.cpu_ms.worker", MICRO),
    Figure("http-w2", "  client", "w2.cpu_ms.client", MICRO),
    Figure("http-w2", "HTTP W2 fifty, steps/s", "w2.parallel_steps_s", more=True, floor=1.5),
    Figure("http-w2", "HTTP W2 one, steps/s", "w2.one_steps_s", more=True, floor=1),
    Figure("http-w4", "HTTP W4 hello alone, p50 ms", "w4.p50_ms", floor=2),
    Figure("http-w5", "HTTP W5 signals/s", "w5.signals_s", more=True, floor=4),
    Figure("pg-w1", "PostgreSQL W1, CPU us", "w1.cpu_ms_per_op", MICRO, target=0.75),
    Figure("pg-w1", "  process", "w1.cpu_ms.process", MICRO),
    Figure("pg-w1", "  PostgreSQL", "w1.cpu_ms.postgresql", MICRO),
    Figure("pg-w1", "PostgreSQL W1, workflows/s", "w1.workflows_s", more=True, floor=10),
    Figure("pg-w2", "PostgreSQL W2 fifty, CPU us a step", "w2.cpu_ms_per_op", MICRO),
    Figure("pg-w2", "PostgreSQL W2 fifty, steps/s", "w2.parallel_steps_s", more=True, floor=8),
    Figure("pg-w2", "PostgreSQL W2 one, steps/s", "w2.one_steps_s", more=True),
    Figure("pg-w3", "PostgreSQL W3 1,000 activities, s", "w3.wall_s"),
    Figure("pg-w4", "PostgreSQL W4 hello alone, p50 ms", "w4.p50_ms"),
    Figure("pg-w5", "PostgreSQL W5 signals/s", "w5.signals_s", more=True),
    Figure("disk", "SQLite, bytes a hello", "disk.bytes_per_workflow", target=0.6),
    Figure("idle", "idle server, SQLite, ms/s", "idle.server_ms_s", budget=2),
    Figure("pg-idle", "idle server, PostgreSQL, ms/s", "idle.server_ms_s", budget=2),
    Figure("pg-idle", "  PostgreSQL for it, ms/s", "idle.postgresql_ms_s", budget=1),
    Figure("memory", "10,000 sleepers, MiB", "w7.rss_mib", budget=100),
    Figure("flat", "10,000 steps against ten times 1,000", "flat.steps", budget=1.1),
    Figure("flat", "1,000 signals against ten times 100", "flat.signals", budget=1.1),
    Figure("crowd", "1,000 children in flight, CPU ratio", "cpu_ratio", budget=1.2),
    Figure("crowd", "1,000 children in flight, memory ratio", "memory_ratio", budget=1.2),
    Figure("import", "import backstay, ms", "import_ms", budget=150),
    Figure("bytecodes", "embedded, hello, bytecodes", "embedded: a workflow of one activity.bytecodes", target=0.67),
    Figure("bytecodes", "  calls", "embedded: a workflow of one activity.calls"),
    Figure("bytecodes", "embedded, a step, bytecodes", "embedded: one more step.bytecodes", target=0.70),
    Figure("bytecodes", "client, hello, bytecodes", "client: a workflow of one activity.bytecodes"),
    Figure("bytecodes", "server, hello, bytecodes", "server: a workflow of one activity.bytecodes", target=0.68),
    Figure("bytecodes", "server, a step, bytecodes", "server: one more step.bytecodes", target=0.68),
    Figure("bytecodes", "worker, hello, bytecodes", "worker: a workflow of one activity.bytecodes", target=0.68),
    Figure("bytecodes", "worker, a step, bytecodes", "worker: one more step.bytecodes", target=0.68),
]


def chosen(only: str | None) -> list[str]:
    """`w2` is w2 and w2-async, `pg` is everything on PostgreSQL."""
    if only is None:
        return list(WORKS)
    found = [name for name in WORKS for asked in only.split(",") if name == asked or name.startswith(f"{asked}-")]
    unknown = [asked for asked in only.split(",") if not any(f"{name}-".startswith(f"{asked}-") for name in found)]
    if unknown:
        raise SystemExit(f"no workload {', '.join(unknown)}; there are {', '.join(WORKS)}")
    return found
