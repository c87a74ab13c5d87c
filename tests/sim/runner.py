"""Many seeds: in several processes, counted, checked for emptiness; a seed that fails is shrunk and told how to repeat."""

from __future__ import annotations

import gc
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from .faults import NODES, Kinds
from .link.faults import LINK
from .link.simulation import LinkSimulation
from .simulation import OPERATIONS, Simulation

SEEDS = Path(__file__).parent / "seeds"
"""Seeds that have found a bug once, each with what it takes. They are run for ever."""

VERBS = (
    *("start", "signal with start", "note", "letter", "add", "query", "result", "describe", "list"),
    *("pause", "unpause", "cancel", "terminate", "repair", "archive", "far activity"),
    *("task elsewhere", "activity elsewhere"),
    *("create schedule", "pause schedule", "resume schedule", "trigger schedule", "backfill schedule"),
    *("update schedule", "delete schedule", "describe schedule", "list schedule"),
)
FEATURES = (
    *("act good", "act flaky", "act beating", "act near", "act far", "risk bad", "risk near_bad", "risk hasty"),
    *("sleep", "signal", "notes", "child", "child later", "fails", "tell", "gather", "risky gather", "race", "saga"),
    *("spawn", "background", "within", "version", "memo", "effect", "luck", "again"),
    *("schedule schedule", "schedule manual", "schedule backfill", "schedule missed", "schedule skipped"),
    *("schedule buffered", "schedule drained", "schedule overlap", "schedule stops others", "schedule rolled over"),
)


LINK_VERBS = (
    *("start", "signal with start", "note", "letter", "add", "query", "result", "describe", "list"),
    *("pause", "unpause", "cancel", "terminate", "repair", "archive"),
    *("task reported", "task refused", "activity reported", "activity refused", "beat", "beat too late"),
    *("question answered", "task fetched", "workflow task polled", "activity task polled", "empty poll"),
    *("published task reported", "published activity reported", "published activity refused", "published beat"),
    *("errand start", "errand say", "errand fetch"),
)
LINK_FEATURES = (
    *(feature for feature in FEATURES if not feature.startswith("schedule ")),
    *("act chatty", "risk dozy", "bulk"),
)


class World(NamedTuple):
    """A kind of simulation: its parts, and what a long run of it must have seen."""

    simulation: type[Simulation]
    kinds: Kinds
    verbs: tuple[str, ...]
    features: tuple[str, ...]
    places: int


EMBEDDED = World(Simulation, NODES, VERBS, FEATURES, 3)
LINKED = World(LinkSimulation, LINK, LINK_VERBS, LINK_FEATURES, 2)


def world(options: dict[str, Any]) -> World:
    return LINKED if options.get("link") else EMBEDDED


def simulate(seed: int, options: dict[str, Any]) -> Simulation:
    """Nothing is collected on the way: what a collection finds, and when, would be part of the run."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        given = {name: value for name, value in options.items() if name != "link"}
        return world(options).simulation(seed, **given).run()
    finally:
        if collecting:
            gc.enable()


class Report(NamedTuple):
    seed: int
    operations: int
    seconds: float
    virtual: float
    digest: str
    law: str | None
    why: str
    fired: Counter[str]
    succeeded: Counter[str]
    features: set[str]
    checks: Counter[str]


def report(seed: int, options: dict[str, Any]) -> Report:
    began = time.perf_counter()
    sim = simulate(seed, options)
    broken = sim.violations[0] if sim.violations else None
    found = Report(
        seed,
        sim.operations,
        time.perf_counter() - began,
        sim.loop_time,
        sim.digest(),
        None if broken is None else broken.law,
        "" if broken is None else str(broken),
        sim.faults.fired,
        sim.successes,
        sim.features,
        sim.auditor.checks,
    )
    logging.disable()  # code that was killed may say that it did not end
    del sim, broken
    gc.collect()
    logging.disable(logging.NOTSET)
    return found


PORTION = 4
"""Seeds that a process takes at once."""

PORTIONS = 40
"""Then another process takes over: code that must never be unwound stays in memory as long as its process lives."""


def run(seeds: Iterable[int], options: dict[str, Any], processes: int) -> Iterator[Report]:
    """The reports in the order of the seeds."""
    if processes == 1:
        yield from (report(seed, options) for seed in seeds)
        return
    with get_context("spawn").Pool(processes, gc.freeze, maxtasksperchild=PORTIONS) as pool:
        yield from pool.imap(partial(report, options=options), seeds, chunksize=PORTION)


class Tally:
    """What a whole run came to."""

    def __init__(self) -> None:
        self.seeds = 0
        self.operations = 0
        self.virtual = 0.0
        self.fired: Counter[str] = Counter()
        self.succeeded: Counter[str] = Counter()
        self.features: Counter[str] = Counter()
        self.checks: Counter[str] = Counter()
        self.failures: list[Report] = []

    def add(self, report: Report) -> None:
        self.seeds += 1
        self.operations += report.operations
        self.virtual += report.virtual
        self.fired.update(report.fired)
        self.succeeded.update(report.succeeded)
        self.features.update(report.features)
        self.checks.update(report.checks)
        if report.law is not None:
            self.failures.append(report)

    def vacuous(self, options: dict[str, Any]) -> list[str]:
        """What this run says nothing about, because it never happened."""
        here = world(options)
        faults = options.get("faults")
        expected = [name for name in (here.kinds.chances if faults is None else faults) if name not in SELDOM]
        return (
            [f"fault {name!r} never fired" for name in expected if not self.fired[name]]
            + [f"operation {verb!r} never succeeded" for verb in here.verbs if not self.succeeded[verb]]
            + [f"feature {name!r} was never used" for name in here.features if not self.features[name]]
        )


SELDOM = frozenset({"power cut"})
"""Faults that only the store on files has."""


# -- shrinking


def shrink(seed: int, options: dict[str, Any], law: str) -> dict[str, Any]:
    """Fewer faults, fewer operations, fewer instances, fewer nodes: as long as the same law is broken."""
    every = list(world(options).kinds.chances)
    best = {"operations": OPERATIONS, "clients": 3, "places": world(options).places, **options}
    best.setdefault("instances", max(2, best["operations"] // 30))
    if best.get("faults") is None:
        best["faults"] = every

    def still(changed: dict[str, Any]) -> bool:
        broken = simulate(seed, changed).violations
        return bool(broken) and broken[0].law == law

    if not still(best):
        return options
    best["faults"] = [name for name in best["faults"] if simulate(seed, best).faults.fired[name]]
    if not still(best):
        best["faults"] = every
    for name in list(best["faults"]):
        fewer = {**best, "faults": [other for other in best["faults"] if other != name]}
        if still(fewer):
            best = fewer
    for key, smallest in (("places", 1), ("instances", 1), ("operations", 3)):
        for value in (smallest, *range(smallest + 1, best[key], max(1, best[key] // 8))):
            if value < best[key] and still({**best, key: value}):
                best = {**best, key: value}
                break
    return best


def command(seed: int, options: dict[str, Any]) -> str:
    words = [f"SEED={seed}"]
    faults = options.get("faults")
    if faults is not None:
        words.append(f"FAULTS='{','.join(faults) or 'none'}'")
    words += [
        f"{key.upper()}={options[key]}" for key in ("operations", "instances", "places", "store") if key in options
    ]
    if options.get("link"):
        words.append("LINK=yes")
    if options.get("far") is not None:
        words.append(f"FAR={'yes' if options['far'] else 'no'}")
    if options.get("links") is not None:
        words.append(f"LINKS={'yes' if options['links'] else 'no'}")
    if options.get("published") is not None:
        words.append(f"PUBLISHED={'yes' if options['published'] else 'no'}")
    return f"make sim {' '.join(words)}"


def trace(sim: Simulation, lines: int = 60) -> str:
    shown = sim.lines if len(sim.lines) <= lines else [*sim.lines[:8], "    ...", *sim.lines[-lines + 8 :]]
    return "\n".join(line[:300] for line in shown)


# -- seeds that are kept


class Kept(msgspec.Struct, frozen=True):
    """A regression: the seed, what it takes, and what was wrong."""

    seed: int
    options: dict[str, Any]
    law: str
    what: str


def kept() -> list[Kept]:
    return [msgspec.json.decode(path.read_bytes(), type=Kept) for path in sorted(SEEDS.glob("*.json"))]
