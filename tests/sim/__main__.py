"""`python -m tests.sim`: see docs/explanation/simulator.md."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

from .faults import CLASSES
from .link.faults import CHANCES as LINK_CHANCES
from .runner import Tally, command, run, shrink, simulate, trace


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sim", description="simulate bad days, one per seed")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="only this one, with its whole log")
    parser.add_argument("--link", action="store_true", help="servers and workers on a wire, instead of embedded nodes")
    parser.add_argument(
        "--faults",
        help=f"only these, separated by commas, or none; there are: {', '.join(CLASSES)};"
        f" with --link: {', '.join(LINK_CHANCES)}",
    )
    parser.add_argument("--operations", type=int, default=500)
    parser.add_argument("--instances", type=int)
    parser.add_argument("--places", type=int)
    parser.add_argument("--store", choices=["memory", "sqlite"])
    parser.add_argument("--far", choices=["yes", "no"], help="a database elsewhere in every seed, or in none")
    parser.add_argument("--links", choices=["yes", "no"], help="links between nodes in every seed, or in none")
    parser.add_argument(
        "--published", choices=["yes", "no"], help="with --link: published workers in every seed, or in none"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--log", help="write the log of --seed to this file")
    given = parser.parse_args()
    options: dict[str, Any] = {
        name: value
        for name in ("operations", "instances", "places", "store")
        if (value := getattr(given, name)) is not None
    }
    if given.link:
        options["link"] = True
    if given.far:
        options["far"] = given.far == "yes"
    if given.links:
        options["links"] = given.links == "yes"
    if given.published:
        options["published"] = given.published == "yes"
    if given.faults:
        options["faults"] = [] if given.faults == "none" else [name.strip() for name in given.faults.split(",")]
    if given.seed is not None:
        return one(given.seed, options, given.log)
    return many(range(given.first, given.first + given.seeds), options, given.processes)


def one(seed: int, options: dict[str, Any], log: str | None) -> int:
    sim = simulate(seed, options)
    again = simulate(seed, options)
    if log:
        with open(log, "w", encoding="utf-8") as file:
            file.write("\n".join(sim.lines) + "\n")
    print(trace(sim))
    print(f"seed {seed}: {sim.operations} operations, {sim.loop_time:.0f} virtual seconds, log {sim.digest()[:16]}")
    print("faults:", ", ".join(f"{name} {count}" for name, count in sorted(sim.faults.fired.items())) or "none")
    if again.digest() != sim.digest():
        different = next((pair for pair in zip(sim.lines, again.lines, strict=False) if pair[0] != pair[1]), None)
        print(f"the second time was different: {different}")
        return 1
    for violation in sim.violations[:3]:
        print(f"BROKEN {violation}"[:3000])
    return 1 if sim.violations else 0


def many(seeds: range, options: dict[str, Any], processes: int) -> int:
    began = time.perf_counter()
    tally = Tally()
    shown = began
    sample = dict.fromkeys(seeds[:: max(50, len(seeds) // 20)], "")
    for done in run(seeds, options, processes):
        tally.add(done)
        if done.seed in sample:
            sample[done.seed] = done.digest
        if done.law is not None:
            print(f"\nseed {done.seed} breaks: {done.why}"[:1200], flush=True)
        now = time.perf_counter()
        if now - shown > 2 or tally.seeds == len(seeds):
            shown = now
            rate = tally.seeds / (now - began)
            line = (
                f"{tally.seeds}/{len(seeds)} seeds, {rate:.1f}/s, {tally.operations} operations"
                f" ({tally.operations / (now - began):.0f}/s), {sum(tally.fired.values())} faults,"
                f" {tally.virtual / 86400:.1f} days, {len(tally.failures)} failed"
            )
            print(f"\r{line}" if sys.stdout.isatty() else line, end="" if sys.stdout.isatty() else "\n", flush=True)
    print()
    summary(tally, time.perf_counter() - began)
    code = same_twice(sample, options, processes)
    for failed in tally.failures[:3]:
        told(failed.seed, options, failed.law or "")
    empty = tally.vacuous(options) if len(seeds) >= 100 else []
    for line in empty:
        print(f"this run proves nothing about it: {line}")
    return 1 if tally.failures or empty else code


def summary(tally: Tally, seconds: float) -> None:
    for title, counts in (("faults", tally.fired), ("operations", tally.succeeded), ("features", tally.features)):
        print(f"{title}: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    print(f"checks: {sum(tally.checks.values())} of {len(tally.checks)} laws")
    print(
        f"{tally.seeds} seeds, {tally.operations} operations, {sum(tally.fired.values())} faults,"
        f" {len(tally.failures)} failed; {seconds:.0f} seconds, {tally.operations / seconds:.0f} operations per second"
    )


def same_twice(sample: dict[int, str], options: dict[str, Any], processes: int) -> int:
    """Some seeds are run again, whichever process they get: their logs must be the same, byte for byte."""
    for again in run(sample, options, processes):
        if again.digest != sample[again.seed]:
            print(f"seed {again.seed} gives another log the second time")
            return 1
    print(f"{len(sample)} seeds run twice, the same logs byte for byte")
    return 0


def told(seed: int, options: dict[str, Any], law: str) -> None:
    small = shrink(seed, options, law)
    sim = simulate(seed, small)
    print(f"\nseed {seed} breaks {law!r}; to repeat it:\n\n  {command(seed, small)}\n")
    print(trace(sim, 40))


if __name__ == "__main__":
    sys.exit(main())
