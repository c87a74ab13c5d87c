"""`make bench`: what Backstay costs, in one table with budgets; beside another commit, and beside other systems where they are installed.

    python bench/run.py                                   everything, three rounds
    python bench/run.py --only w1,w2,http                 some workloads
    python bench/run.py --against COMMIT                  ten rounds, and ratios to that commit; `against.py` leaves out the systems
    python bench/run.py --against COMMIT --of COMMIT      two commits, whatever is in this checkout
    python bench/run.py --json out && python -m tools.performance out     the figures of docs/explanation/performance.md

In each round the sides take turns at each workload, forwards and backwards, each time in a new process that warms up first. Figures
are medians of the rounds. A ratio to a commit is the median of the ratios of each round, with the lowest and the highest. CPU is
that of all processes of a side, PostgreSQL's included: read it and the ratios. On a machine that others use, the rest is noise.

The scripts of the systems are found through BENCH_HARNESS, by default `shared/bench` beside this checkout; the systems through
BENCH_HOME, as the README of those scripts installs them.
"""

from __future__ import annotations

import argparse
import json
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from figures import FIGURES, WORKS, Figure, Work, chosen
from measuring import log, machine, median, small
from sides import ROOT, Figures, Side, System, commit, systems, this_tree

sys.path.insert(0, str(ROOT))

from tests.processes.database import Database

ROUNDS, ROUNDS_AGAINST = 3, 10
SYSTEM_ROUNDS = 3
SMALL = "w1,http-w1,import"
SETTINGS = {"shared_buffers": "128MB", "max_connections": "200"}

Rounds = dict[str, dict[str, list[Figures]]]
"""What each side has told, in order: by workload, by the name of the side."""


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT", help="compare with the source of this commit")
    parser.add_argument("--of", metavar="COMMIT", help="measure the source of this commit instead of this checkout's")
    parser.add_argument("--rounds", type=int, help=f"{ROUNDS} unless said otherwise, {ROUNDS_AGAINST} against a commit")
    parser.add_argument("--only", metavar="WORK,...", help=f"some of {', '.join(WORKS)}; `w2` is w2 and w2-async")
    parser.add_argument("--no-systems", action="store_true", help="no other systems")
    parser.add_argument("--json", metavar="FILE", help="write what was measured")
    small(parser)
    options = parser.parse_args(given)
    options.only = options.only or (SMALL if options.small else None)
    if options.small:
        options.rounds = options.rounds or 1
    options.rounds = options.rounds or (ROUNDS_AGAINST if options.against else ROUNDS)
    works = {name: WORKS[name] for name in chosen(options.only)}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended
    with tempfile.TemporaryDirectory(prefix="backstay-bench-") as scratch:
        ours: list[Side] = [commit(options.of) if options.of else this_tree(Path(scratch))]
        if options.against:
            ours.append(commit(options.against))
            if ours[0].name == ours[1].name:
                ours[1].name += " again"
        return _compare(options, works, ours, list(given if given is not None else sys.argv[1:]))


def _compare(options: argparse.Namespace, works: dict[str, Work], ours: list[Side], given: list[str]) -> int:
    machine_before = machine()
    database = Database(SETTINGS)
    try:
        server = f"postgresql://postgres@127.0.0.1:{database.ports[0]}"
        wanted = [] if options.small or options.no_systems else systems(server)
        others = [system for system in wanted if system.missing is None]
        if any(work.postgresql for work in works.values()) or others:
            database.create()
        found, failed = _rounds(options, works, ours, others, f"{server}/postgres")
    finally:
        database.end()
    rows = [told for figure in FIGURES if (told := row(figure, found.get(figure.work, {}), ours, others)) is not None]
    print("\n".join(table(rows, [side.name for side in (*ours, *others)])))
    if options.small:
        print("these are the sizes of --small: the figures say nothing")
    for system in wanted:
        if system.missing is not None:
            print(f"{system.name} is not installed: there is no {system.missing}")
    for problem in failed:
        print(f"failed: {problem}")
    if options.json:
        told = {
            "command": " ".join(["python bench/run.py", *given]),
            "date": time.strftime("%Y-%m-%d"),
            "machine": {**machine_before, "system": platform.platform()},
            "sides": [side.name for side in (*ours, *others)],
            "rounds": options.rounds,
            "small": options.small,
            "rows": rows,
        }
        Path(options.json).write_text(json.dumps(told, indent=1) + "\n")
    return 1 if failed else 0


def _rounds(
    options: argparse.Namespace, works: dict[str, Work], ours: list[Side], others: list[System], url: str
) -> tuple[Rounds, list[str]]:
    found: Rounds = {name: {} for name in works}
    failed: list[str] = []
    for turn in range(options.rounds):
        for name, work in works.items():
            if turn >= work.rounds:
                continue
            asked: list[Side] = [*ours]
            if work.systems and turn < SYSTEM_ROUNDS:
                asked += [one for one in others if one.postgresql == work.postgresql and name not in one.without]
            told: dict[str, Figures] = {}
            for side in asked if turn % 2 == 0 else reversed(asked):
                mine = not isinstance(side, System)
                arguments = [*(work.arguments if mine else work.systems)]
                if mine and work.postgresql:
                    arguments += ["--db", url]
                if mine and options.small:
                    arguments.append("--small")
                began = time.perf_counter()
                try:
                    told[side.name] = side.measure(work.script, arguments, turn)
                except Exception as problem:  # the others are measured all the same
                    failed.append(f"{name} of {side.name} in round {turn + 1}: {problem}")
                log(f"round {turn + 1} of {options.rounds}, {name}, {side.name}: {time.perf_counter() - began:.1f} s")
            if all(side.name in told for side in ours):  # rounds of one side only are no pairs
                for side, figures in told.items():
                    found[name].setdefault(side, []).append(figures)
    return found, failed


def row(
    figure: Figure, told: dict[str, list[Figures]], ours: list[Side], others: list[System]
) -> dict[str, Any] | None:
    """What the table says about a figure; None if nobody has told it."""

    def values(side: Side) -> list[float]:
        return [figures[figure.field] * figure.factor for figures in told.get(side.name, []) if figure.field in figures]

    mine = values(ours[0])
    if not mine:
        return None
    line: dict[str, Any] = {"label": figure.label, "work": figure.work, "values": {ours[0].name: median(mine)}}
    if figure.budget is not None:
        line |= {"budget": figure.budget, "in_budget": line["values"][ours[0].name] <= figure.budget}
    for other in ours[1:]:
        theirs = values(other)
        pairs = [a / b for a, b in zip(mine, theirs, strict=True) if b] if len(theirs) == len(mine) else []
        if theirs:
            line["values"][other.name] = median(theirs)
        if pairs:
            line |= {"ratio": median(pairs), "lowest": min(pairs), "highest": max(pairs)}
            if figure.target is not None:
                good = line["ratio"] >= figure.target if figure.more else line["ratio"] <= figure.target
                line |= {"target": figure.target, "more": figure.more, "met": good}
    for other in others:
        theirs = values(other)
        if theirs and all(theirs) and all(mine):
            line["values"][other.name] = median(theirs)
            better = median(mine) / median(theirs) if figure.more else median(theirs) / median(mine)
            line.setdefault("times", {})[other.name] = better
    if "times" in line and figure.floor is not None:
        line |= {"floor": figure.floor, "above": min(line["times"].values()) >= figure.floor}
    return line


def table(rows: list[dict[str, Any]], names: list[str]) -> list[str]:
    """Lines of text: the figure, its budget, the sides, the ratio to a commit and its target."""
    against = any("ratio" in row for row in rows)
    heads = ["", names[0], "budget"]
    if against:
        heads += [names[1], "ratio", "lowest", "highest", "target"]
    systems_shown = names[2 if against else 1 :]
    heads += [*systems_shown, *(["floor"] if systems_shown else [])]
    lines = [heads]
    for row in rows:
        values, times = row["values"], row.get("times", {})
        line = [row["label"], number(values[names[0]])]
        line.append("" if "budget" not in row else f"{row['budget']:g} {'ok' if row['in_budget'] else 'OVER'}")
        if against:
            line.append(number(values.get(names[1])))
            line += [f"{row[name]:.3f}" if name in row else "" for name in ("ratio", "lowest", "highest")]
            sign = ">=" if row.get("more") else "<="
            line.append("" if "target" not in row else f"{sign} {row['target']:g} {'ok' if row['met'] else 'MISSED'}")
        line += [f"{number(values.get(name))} ({times[name]:.1f}x)" if name in times else "" for name in systems_shown]
        if systems_shown:
            line.append("" if "floor" not in row else f"{row['floor']:g}x {'ok' if row['above'] else 'BELOW'}")
        lines.append(line)
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 100 else f"{value:.1f}"


if __name__ == "__main__":
    sys.exit(main())
