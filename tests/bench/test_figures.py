"""What `make bench` makes of its measurements: ratios, verdicts, the table, and the figures of the pages."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from tools import performance

from ..session import ROOT

sys.path.append(str(ROOT / "bench"))

import figures
import run
import sides

HELLO = figures.Figure("w1", "hello, us", "w1.cpu_ms_per_op", 1000, target=0.7, budget=125, floor=6)
RATE = figures.Figure("w1", "hellos/s", "w1.workflows_s", more=True, target=1.6)


class Side(sides.Side):
    def __init__(self, name: str) -> None:
        self.name = name


class System(sides.System):
    def __init__(self, name: str) -> None:
        super().__init__(name, "none", "none.py")


NOW, BEFORE, OTHER = Side("Backstay"), Side("before"), System("Other")


def rounds(*values: float, field: str = HELLO.field) -> list[sides.Figures]:
    return [{field: value} for value in values]


def test_a_ratio_is_the_median_of_the_ratios_of_each_round() -> None:
    told = {"Backstay": rounds(0.1, 0.2, 0.9), "before": rounds(0.2, 0.25, 1.0)}
    row = run.row(HELLO, told, [NOW, BEFORE], [])
    assert row is not None
    assert (row["lowest"], row["ratio"], row["highest"]) == pytest.approx((0.5, 0.8, 0.9))
    assert row["values"] == pytest.approx({"Backstay": 200, "before": 250})
    assert not row["met"]
    assert not row["in_budget"]


def test_where_more_is_better_a_target_is_a_floor() -> None:
    told = {"Backstay": rounds(2000, field=RATE.field), "before": rounds(1000, field=RATE.field)}
    row = run.row(RATE, told, [NOW, BEFORE], [])
    assert row is not None
    assert row["met"]
    assert "in_budget" not in row


def test_another_system_is_told_as_how_many_times_better_we_are() -> None:
    row = run.row(HELLO, {"Backstay": rounds(0.1), "Other": rounds(0.5)}, [NOW], [OTHER])
    assert row is not None
    assert row["times"] == pytest.approx({"Other": 5})
    assert not row["above"]
    assert "ratio" not in row


def test_a_figure_that_was_not_measured_has_no_row() -> None:
    assert run.row(HELLO, {}, [NOW, BEFORE], []) is None


def test_every_figure_is_of_a_workload_and_every_workload_has_one() -> None:
    assert {figure.work for figure in figures.FIGURES} == figures.WORKS.keys()


def test_a_workload_is_named_by_its_beginning() -> None:
    assert figures.chosen("w1,flat") == ["w1", "w1-async", "flat"]
    assert figures.chosen("pg") == [name for name, work in figures.WORKS.items() if work.postgresql]
    assert figures.chosen(None) == list(figures.WORKS)
    with pytest.raises(SystemExit, match="nonsense"):
        figures.chosen("w1,nonsense")


def test_the_table_has_a_column_for_each_side() -> None:
    told = {"Backstay": rounds(0.1), "before": rounds(0.2), "Other": rounds(0.5)}
    made = run.row(HELLO, told, [NOW, BEFORE], [OTHER])
    assert made is not None
    head, line = run.table([made], ["Backstay", "before", "Other"])
    assert head.split() == ["Backstay", "budget", "before", "ratio", "lowest", "highest", "target", "Other", "floor"]
    assert "125 ok" in line
    assert "<= 0.7 ok" in line
    assert "500.0 (5.0x)" in line
    assert "6x BELOW" in line


def measured() -> dict[str, Any]:
    told = {"Backstay": rounds(0.1), "before": rounds(0.2), "Other": rounds(0.5)}
    machine = {"cpus": 2, "python": "3.11.7", "load1": 0.1, "system": "Linux"}
    return {
        "command": "python bench/run.py",
        "date": "2026-01-01",
        "machine": machine,
        "sides": ["Backstay", "before", "Other"],
        "rounds": 3,
        "small": False,
        "rows": [run.row(HELLO, told, [NOW, BEFORE], [OTHER])],
    }


def test_a_page_gets_what_was_measured_and_keeps_the_rest() -> None:
    page = (
        "a\n<!-- performance: how -->\nold\n<!-- end of performance -->\n"
        "<!-- performance: w1 -->\nold\n<!-- end of performance -->\n"
        "<!-- performance: w2 -->\nkept\n<!-- end of performance -->\n"
        "takes <!-- figure: hello, us -->7<!-- end --> us, or <!-- figure: other -->8<!-- end -->\n"
    )
    made = performance.filled(page, measured())
    assert "old" not in made
    assert "`python bench/run.py`" in made
    assert "| hello, us | 100 | 200 | 500 (5.0x) | 0.50 | ≤ 0.7 | 125 |" in made
    assert "<!-- performance: w2 -->\nkept\n" in made
    assert "takes <!-- figure: hello, us -->100<!-- end --> us, or <!-- figure: other -->8<!-- end -->" in made
    assert performance.filled(made, measured()) == made


def test_the_pages_name_workloads_and_figures_that_exist() -> None:
    labels = {figure.label for figure in figures.FIGURES}
    for page in performance.PAGES:
        works, figures_named = performance.marks(page.read_text("utf-8"))
        assert works <= {*figures.WORKS, "how"}, page
        assert figures_named <= labels, page
