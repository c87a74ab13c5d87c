"""`make contract`: runs the tests and prints, per section of the contract, which rows have a passing test.

python tests/contract.py            run everything and print
python tests/contract.py --missing  name the rows that have none, too
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    ids = (ROOT / "docs" / "contract-ids.txt").read_text().split()
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "rows.json"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "auto", f"--contract={report}", str(ROOT / "tests")]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        outcomes: dict[str, dict[str, bool]] = json.loads(report.read_text()) if report.exists() else {}
    sections: dict[str, list[str]] = defaultdict(list)
    for id in ids:
        sections[id.rpartition("-")[0]].append(id)
    proven = {id for id, tests in outcomes.items() if tests and all(tests.values())}
    failing = {id for id, tests in outcomes.items() if not all(tests.values())}
    for section, rows in sections.items():
        done = [id for id in rows if id in proven]
        broken = [id for id in rows if id in failing]
        missing = [id for id in rows if id not in outcomes]
        print(f"{section:8} {len(done):3} of {len(rows):3}  {' '.join(id.rpartition('-')[2] for id in done)}")
        if broken:
            print(f"{'':8} failing: {' '.join(broken)}")
        if missing and "--missing" in sys.argv:
            print(f"{'':8} no test: {' '.join(id.rpartition('-')[2] for id in missing)}")
    print(f"{'all':8} {len(proven):3} of {len(ids):3}")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
