"""A poller that never ends: it looks, sleeps, and continues as new before its history grows long.

Every run of it has a small history of its own; the workflow id stays the same, and `result()` follows the chain to its
end.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from backstay import Backstay, activity, continue_as_new, sleep, workflow

LOOKS_PER_RUN = 3


@activity
def look(number: int) -> str:
    return "arrived" if number >= 8 else "on its way"


@workflow
def track(parcel: str, looks: int = 0) -> str:
    for number in range(looks + 1, looks + 1 + LOOKS_PER_RUN):
        if look(number) == "arrived":
            return f"{parcel} arrived after {number} looks"
        sleep("50ms")
    return continue_as_new(track, parcel, looks + LOOKS_PER_RUN)


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        Backstay(Path(directory) / "parcels.db", register=[track, look]) as backstay,
    ):
        print(backstay.execute(track, "parcel-1", "parcel-1"))
        for run in reversed(backstay.list(workflow_id="parcel-1")):
            print(f"  run {run.number}: {run.closed_reason}, {run.length} events")


if __name__ == "__main__":
    main()
