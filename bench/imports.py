"""How long `import backstay` takes with its bytecode cached: the quickest of several processes, in milliseconds.

    python bench/imports.py

The source is compiled into a cache of this run's own first, so that it does not matter whether the environment writes bytecode.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile

from measuring import small

TIMES = 20
CODE = "import time; t = time.perf_counter(); import backstay; print((time.perf_counter() - t) * 1000)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the result")
    small(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)

        def once() -> float:
            done = subprocess.run(
                [sys.executable, "-P", "-c", CODE], env=environment, capture_output=True, text=True, check=True
            )
            return float(done.stdout)

        once()  # compiles
        took = round(min(once() for _ in range(2 if options.small else TIMES)), 1)
    print(f"import backstay: {took} ms")
    if options.json:
        with open(options.json, "a") as file:
            file.write(json.dumps({"results": {"import_ms": took}}) + "\n")


if __name__ == "__main__":
    main()
