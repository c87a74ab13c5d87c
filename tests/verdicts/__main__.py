"""Changes of workflow code, the verdict on each, and what really deploying it does.

python -m tests.verdicts [--changes 200] [--seed 1] [--small]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from .changes import made, tried


async def judge(changes: int, seed: int) -> int:
    runs, wrong, kinds, blocked = 0, 0, Counter[str](), 0
    with tempfile.TemporaryDirectory() as directory:
        for number in range(changes):
            change = made(random.Random(f"{seed}-{number}"))
            found = await tried(change, Path(directory) / f"{number}.db")
            runs += found.runs
            blocked += len(found.blocked)
            kinds[change.what] += 1
            if found.said != found.blocked:
                wrong += 1
                print(f"change {number} ({change.what}): said {found.said}, blocked {found.blocked}")
                print(change.before.source(), change.after.source(), sep="\n")
    of_each = ", ".join(f"{count} {what}" for what, count in kinds.most_common())
    print(f"{changes} changes ({of_each}), {runs} open runs, {blocked} blocked: {wrong} verdicts were wrong")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--small", action="store_true", help="ten changes")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)  # each blocked run would be logged
    return asyncio.run(judge(10 if given.small else given.changes, given.seed))


if __name__ == "__main__":
    sys.exit(main())
