"""The figures of docs/explanation/performance.md and of the README, made from what `bench/run.py` has measured.

    python bench/run.py --json build/bench.json && python -m tools.performance build/bench.json
    python -m tools.performance build/bench.json --print      show the tables, write nothing

The page has its tables between `<!-- performance: w1 w2 ... -->` and `<!-- end of performance -->`; the words are workloads of
`bench/figures.py`, and `how` is a sentence about machine and command. A sentence may hold a single figure:
`<!-- figure: its label -->2,000<!-- end -->`. What a run has not measured stays as it was; a run with `--small` changes no page.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "docs" / "explanation" / "performance.md", ROOT / "README.md")
_END = "<!-- end of performance -->"
_TABLE = re.compile(rf"(<!-- performance: ([^>]*?) -->\n).*?{_END}", re.DOTALL)
_FIGURE = re.compile(r"(<!-- figure: ([^>]*?) -->).*?(<!-- end -->)")

Measured = Mapping[str, Any]
"""What `bench/run.py --json` writes."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path, metavar="FILE", help="what bench/run.py has written with --json")
    parser.add_argument("--print", action="store_true", help="show the tables, write nothing")
    options = parser.parse_args()
    measured: Measured = json.loads(options.measured.read_text(encoding="utf-8"))
    if options.print:
        print(how(measured), part(measured, [row["work"] for row in measured["rows"]]), sep="\n\n")
        return 0
    if measured["small"]:
        print(f"{options.measured} was made with --small: its figures say nothing", file=sys.stderr)
        return 1
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = filled(before, measured)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(f"changed: {page.relative_to(ROOT)}")
    return 0


def filled(markdown: str, measured: Measured) -> str:
    """A page with the figures between its marks made anew."""

    def tables(mark: re.Match[str]) -> str:
        made = part(measured, mark[2].split())
        return f"{mark[1]}\n{made}\n\n{_END}" if made else mark[0]

    def figure(mark: re.Match[str]) -> str:
        for row in measured["rows"]:
            if row["label"] == mark[2]:
                return f"{mark[1]}{number(row['values'][ours(measured)])}{mark[3]}"
        return mark[0]

    return _FIGURE.sub(figure, _TABLE.sub(tables, markdown))


def marks(markdown: str) -> tuple[set[str], set[str]]:
    """The workloads and the single figures that a page has marks for."""
    works = {work for _, words in _TABLE.findall(markdown) for work in words.split()}
    return works, {label for _, label, _ in _FIGURE.findall(markdown)}


def part(measured: Measured, works: list[str]) -> str:
    """The rows of some workloads as a table, or how they were measured; nothing if there are none."""
    if works == ["how"]:
        return how(measured)
    rows = [row for row in measured["rows"] if row["work"] in works]
    return "\n".join(table(rows, measured["sides"])) if rows else ""


def how(measured: Measured) -> str:
    machine = measured["machine"]
    said = (
        f"Measured on {measured['date']} by `{measured['command']}`, medians of up to {measured['rounds']} rounds, on"
        f" {machine['cpus']} cores with Python {machine['python']} ({machine['system']}); the load was {machine['load1']}"
        " before."
    )
    return "\n".join(textwrap.wrap(said, 100, break_long_words=False, break_on_hyphens=False))


def table(rows: list[dict[str, Any]], sides: list[str]) -> list[str]:
    """Columns are left out if no row has anything in them."""
    shown = [side for side in sides if any(side in row["values"] for row in rows)]
    columns: list[list[str]] = [["what", *(row["label"].replace("  ", "- ", 1) for row in rows)]]
    for side in shown:
        cells: list[str] = []
        for row in rows:
            times = row.get("times", {}).get(side)
            value = row["values"].get(side)
            cells.append("" if value is None else number(value) + ("" if times is None else f" ({times:.1f}x)"))
        columns.append([side, *cells])
    for head, words in (("ratio", ratio), ("target", target), ("budget", budget)):
        cells = [words(row) for row in rows]
        if any(cells):
            columns.append([head, *cells])
    lines = ["| " + " | ".join(line) + " |" for line in zip(*columns, strict=True)]
    return [lines[0], "|---|" + "--:|" * (len(columns) - 1), *lines[1:]]


def ratio(row: dict[str, Any]) -> str:
    return f"{row['ratio']:.2f}" if "ratio" in row else ""


def target(row: dict[str, Any]) -> str:
    if "target" not in row:
        return ""
    return f"{'≥' if row['more'] else '≤'} {row['target']:g}{'' if row['met'] else ', missed'}"


def budget(row: dict[str, Any]) -> str:
    return f"{row['budget']:g}{'' if row['in_budget'] else ', over'}" if "budget" in row else ""


def ours(measured: Measured) -> str:
    return measured["sides"][0]


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
