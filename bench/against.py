"""What has become cheaper or dearer since a commit: ratios of interleaved rounds, and nothing else.

    python bench/against.py COMMIT                              everything, ten rounds
    python bench/against.py COMMIT --only w1,w2 --rounds 5
    python bench/against.py COMMIT --of COMMIT                  two commits, whatever is in this checkout

The same as `run.py --against COMMIT` without other systems; `run.py` says what is measured and how. To see how much of a ratio is
noise, compare a commit with itself: `python bench/against.py HEAD --of HEAD`.
"""

from __future__ import annotations

import sys

import run

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__)
        sys.exit(run.main(["--help"]))
    sys.exit(run.main(["--against", sys.argv[1], "--no-systems", *sys.argv[2:]]))
