"""Backstay on PostgreSQL against the peers that live there, in one run: DBOS and Absurd, where they are installed.

    python bench/postgresql_peers.py                 W1 and W2, one round
    python bench/postgresql_peers.py --rounds 3      interleaved rounds; medians are printed

The server is one of this run's own, with `fsync` and `synchronous_commit` on. The peers are found as `run.py` finds its own.
The CPU is that of all processes, PostgreSQL's included: read the ratios. The steps of the peers are `async` functions, which need
no thread; Backstay runs both kinds, and has a ratio for each.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from run import HARNESS, HERE, HOME, measure, medians

sys.path.insert(0, str(HERE.parent))

from tests.processes.database import Database

OURS = {"threads": [], "async": ["--async-activities"]}
PEERS = {"DBOS": ("core", "peer_dbos.py"), "Absurd": ("absurd", "peer_absurd.py")}
# The last one: the floor as a ratio to the faster peer.
FIGURES = [
    ("W1 hello, workflows/s", "w1", "workflows_s", 10),
    ("W2 one, steps/s", "w2", "one_steps_s", None),
    ("W2 fifty, steps/s", "w2", "parallel_steps_s", 8),
    ("W1 CPU per workflow, ms", "w1", "cpu_ms_per_op", None),
    ("W2 CPU per step, ms", "w2", "cpu_ms_per_op", None),
]
SETTINGS = {"shared_buffers": "128MB", "max_connections": "200", "autovacuum": "on"}


def commands(port: int, size: list[str]) -> dict[str, list[str]]:
    url = f"postgresql://postgres@127.0.0.1:{port}/"
    ours = [sys.executable, str(HERE / "peer_backstay.py"), "--db", f"{url}postgres", *size]
    found = {name: [*ours, *more] for name, more in OURS.items()}
    for name, (environment, script) in PEERS.items():
        python = HOME / "venvs" / environment / "bin" / "python"
        if python.exists():
            found[name] = [str(python), str(HARNESS / script), "--db", f"{url}{name.lower()}", *size]
        else:
            print(f"{name} is not installed under {HOME}; the harness's setup.sh installs it")
    return found


def table(results: dict[str, dict[str, dict[str, float]]]) -> None:
    print(f"\n{'':28}" + "".join(f"{name:>12}" for name in results) + "   against the faster peer")
    for label, workload, field, floor in FIGURES:
        values = {name: found.get(workload, {}).get(field, float("nan")) for name, found in results.items()}
        line = f"{label:28}" + "".join(f"{value:12.2f}" for value in values.values())
        peers = [value for name, value in values.items() if name not in OURS]
        if peers:
            less = field == "cpu_ms_per_op"
            ratios = {name: min(peers) / values[name] if less else values[name] / max(peers) for name in OURS}
            line += "   " + ", ".join(f"{name} {ratio:.1f}x" for name, ratio in ratios.items())
            if floor is not None:
                line += f"   floor {floor}x: {'ok' if ratios['async'] >= floor else 'BELOW'}"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--workloads", default="w1,w2")
    parser.add_argument("--w1-n", default="3000")
    options = parser.parse_args()
    if not (HARNESS / "driver.py").exists():
        raise SystemExit(f"no benchmark harness at {HARNESS}; set BENCH_HARNESS")
    database = Database(SETTINGS)
    try:
        database.create()
        with tempfile.TemporaryDirectory() as scratch:
            found = commands(database.ports[0], ["--workloads", options.workloads, "--w1-n", options.w1_n])
            files = {name: Path(scratch) / f"{name}.jsonl" for name in found}
            for number in range(options.rounds):
                print(f"round {number + 1} of {options.rounds} ...", flush=True)
                for name, command in found.items():
                    measure(command, files[name])
            table({name: medians(file) for name, file in files.items()})
    finally:
        database.end()


if __name__ == "__main__":
    main()
