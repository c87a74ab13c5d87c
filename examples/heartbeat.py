"""A long activity that reports its progress, and is tried again soon after it falls silent.

With `heartbeat_timeout="300ms"` an attempt that says nothing for that long is given up and tried again, however long the whole
work may take.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from backstay import ActivityCancelled, Backstay, activity, activity_info, heartbeat, workflow


@activity(retries=2, backoff="50ms", heartbeat_timeout="300ms", timeout="1h")
def import_rows(total: int) -> str:
    try:
        for row in range(total):
            heartbeat("importing", current=row, total=total, unit="rows")
            if activity_info().number == 1 and row == 3:
                time.sleep(0.6)  # stuck: nobody hears from this attempt any more
            time.sleep(0.02)
    except ActivityCancelled:
        # The heartbeat of an attempt that was given up says so; here is the place to clean up.
        print("attempt 1 was given up")
        raise
    return f"{total} rows imported at attempt {activity_info().number}"


@workflow
def nightly_import(total: int) -> str:
    return import_rows(total)


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        Backstay(Path(directory) / "imports.db", register=[nightly_import, import_rows]) as backstay,
    ):
        print(backstay.execute(nightly_import, "import-1", 20))


if __name__ == "__main__":
    main()
