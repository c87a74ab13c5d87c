"""`make bench`: Backstay's workloads, its budgets, and, where the peer is installed, Restate in the same run with ratios.

    python bench/run.py                  W1-W7, flat cost per step and per signal, import time
    python bench/run.py --rounds 3       interleaved rounds; medians are printed
    python bench/run.py --workloads w1   some of them
    python bench/run.py --http           server, worker and client in processes of their own: W1, W2, W4, W5

The harness (workloads and peers) is found through BENCH_HARNESS, by default `shared/bench` beside this checkout; Restate
through BENCH_HOME as that harness's `setup.sh` installs it. Wall times on shared cores are noise: read the ratios and
the CPU per operation.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
HARNESS = Path(os.environ.get("BENCH_HARNESS", HERE.parents[1] / "shared" / "bench"))
HOME = Path(os.environ.get("BENCH_HOME", Path.home() / ".cache" / "backstay-bench"))
RESTATE = HOME / "npm/node_modules/@restatedev/restate-server-linux-x64/bin/restate-server"
RESTATE_PYTHON = HOME / "venvs/restate/bin/python"

# The last two: whether higher is better, and the floor as a ratio to the peer.
FIGURES = [
    ("W1 hello, workflows/s", "w1", "workflows_s", True, 6),
    ("W2 one, steps/s", "w2", "one_steps_s", True, 3),
    ("W2 fifty, steps/s", "w2", "parallel_steps_s", True, 4),
    ("W3 fan of 1000, s", "w3", "wall_s", False, 4),
    ("W4 latency p50, ms", "w4", "p50_ms", False, 4),
    ("W5 signals/s", "w5", "signals_s", True, 8),
    ("W6 recovery of 1000, s", "w6", "restart_to_all_done_s", False, 1),
]
OVER_HTTP = [
    ("W1 hello, workflows/s", "w1", "workflows_s", True, 2),
    ("W2 one, steps/s", "w2", "one_steps_s", True, 1),
    ("W2 fifty, steps/s", "w2", "parallel_steps_s", True, 1.5),
    ("W4 latency p50, ms", "w4", "p50_ms", False, 2),
    ("W5 signals/s", "w5", "signals_s", True, 4),
]
# A budget is in microseconds; the factor turns the field into them.
BUDGETS = [
    ("CPU per workflow, W1", "w1", "cpu_ms_per_op", 1000, 215),
    ("CPU per step, W2 fifty", "w2", "cpu_ms_per_op", 1000, 120),
]

BUDGETS_OVER_HTTP = [("CPU per workflow, W1", "w1", "cpu_ms_per_op", 1000, 700)]


def measure(command: list[str], out: Path) -> None:
    environment = {**os.environ, "BENCH_HOME": str(HOME), "BENCH_HARNESS": str(HARNESS)}
    subprocess.run([*command, "--json", str(out)], env=environment, stdout=subprocess.DEVNULL, check=False, timeout=900)


def medians(file: Path) -> dict[str, dict[str, float]]:
    """workload -> field -> median over the rounds."""
    seen: dict[str, dict[str, list[float]]] = {}
    if file.exists():
        for line in file.read_text().splitlines():
            for workload, fields in json.loads(line).get("results", {}).items():
                if isinstance(fields, dict):
                    for name, value in fields.items():
                        if isinstance(value, int | float):
                            seen.setdefault(workload, {}).setdefault(name, []).append(value)
    return {w: {name: statistics.median(values) for name, values in fields.items()} for w, fields in seen.items()}


def flat(what: str) -> float:
    """The CPU of one long run against that of ten short ones."""
    command = [sys.executable, str(HERE / "flat.py"), what]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def children() -> dict[str, float]:
    """A fan of children instead of activities, and what 1,000 of them cost against ten times 100."""
    script = HERE / "children.py"
    return json.loads(subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout)


def import_ms() -> float:
    code = "import time; t = time.perf_counter(); import backstay; print((time.perf_counter() - t) * 1000)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(5)]
    return min(float(run.stdout) for run in runs)


def table(ours: dict[str, dict[str, float]], peer: dict[str, dict[str, float]], figures: list[Any]) -> None:
    print(f"\n{'':28}{'Backstay':>12}{'Restate':>12}{'ratio':>9}   floor")
    for label, workload, field, higher, floor in figures:
        a, b = ours.get(workload, {}).get(field), peer.get(workload, {}).get(field)
        if a is None:
            continue
        ratio = None if not b else (a / b if higher else b / a)
        shown = "" if ratio is None else f"{ratio:8.1f}x"
        verdict = "" if ratio is None else ("ok" if ratio >= floor else "BELOW")
        print(f"{label:28}{a:12.2f}{b if b is not None else float('nan'):12.2f}{shown:>9}   {floor}x {verdict}")


def budgets(ours: dict[str, dict[str, float]], peer: dict[str, dict[str, float]], limits: list[Any]) -> None:
    print(f"\n{'':28}{'measured':>12}{'budget':>12}")
    rows: list[tuple[str, float, float]] = []
    for label, workload, field, factor, budget in limits:
        if field in ours.get(workload, {}):
            rows.append((f"{label}, us", ours[workload][field] * factor, budget))
    if "one_steps_s" in ours.get("w2", {}) and limits is BUDGETS:
        rows.append(("wall per step, W2 one, us", 1e6 / ours["w2"]["one_steps_s"], 620))
    for label, value, budget in rows:
        print(f"{label:28}{value:12.0f}{budget:12.0f}   {'ok' if value <= budget else 'over'}")
    for label, workload in (("CPU per workflow, W1", "w1"), ("CPU per step, W2 fifty", "w2")):
        a, b = ours.get(workload, {}).get("cpu_ms_per_op"), peer.get(workload, {}).get("cpu_ms_per_op")
        if a and b:
            print(f"{label + ', ratio':28}{b / a:11.1f}x less than the peer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--workloads")
    parser.add_argument("--http", action="store_true", help="over HTTP instead of embedded")
    parser.add_argument("--w6-sleep", default="15")
    parser.add_argument("--no-peer", action="store_true")
    options = parser.parse_args()
    options.workloads = options.workloads or ("w1,w2,w4,w5" if options.http else "w1,w2,w3,w4,w5,w6,w7")
    ours_is = "peer_backstay_http.py" if options.http else "peer_backstay.py"
    if not (HARNESS / "driver.py").exists():
        raise SystemExit(f"no benchmark harness at {HARNESS}; set BENCH_HARNESS")
    size: list[Any] = ["--workloads", options.workloads, "--w1-n", "3000", "--w6-sleep", options.w6_sleep]
    with tempfile.TemporaryDirectory() as scratch:
        ours, peer = Path(scratch) / "backstay.jsonl", Path(scratch) / "restate.jsonl"
        with_peer = RESTATE.exists() and RESTATE_PYTHON.exists() and not options.no_peer
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds} ...", flush=True)
            measure([sys.executable, str(HERE / ours_is), *size], ours)
            if with_peer:
                restate = [str(RESTATE_PYTHON), str(HARNESS / "peer_restate.py"), "--server", str(RESTATE), *size]
                measure(restate, peer)
        mine, other = medians(ours), medians(peer)
        memory = [json.loads(line)["results"].get("w7", {}) for line in ours.read_text().splitlines()]
    if not with_peer:
        print(f"Restate is not installed under {HOME}; its harness's setup.sh installs it")
    table(mine, other, OVER_HTTP if options.http else FIGURES)
    budgets(mine, other, BUDGETS_OVER_HTTP if options.http else BUDGETS)
    if options.http:
        return
    for row in memory[-1:]:
        if "rss_open_mib" in row:
            print(f"\n10,000 sleeping workflows: {row['rss_open_mib']['process']:.0f} MiB in all (budget 150)")
    if "w2" in options.workloads:
        print(f"one run of 10,000 steps costs {flat('steps'):.2f} times ten of 1,000 (budget 1.2)")
    if "w5" in options.workloads:
        print(f"1,000 signals to one run cost {flat('signals'):.2f} times 100 to each of ten (budget 1.2)")
    if "w3" in options.workloads:
        fan = children()
        print(f"W3 with 1,000 children: {fan['fan_of_1000_children_s']:.2f} s")
        print(f"1,000 children cost {fan['cpu_of_1000_against_ten_times_100']:.2f} times ten times 100 (budget 1.2)")
        print(
            f"in flight: CPU {fan['in_flight_cpu_ratio']:.2f}, memory {fan['in_flight_memory_ratio']:.2f} (budget 1.2)"
        )
    print(f"import backstay: {import_ms():.0f} ms (budget 150)")


if __name__ == "__main__":
    main()
