"""A change of workflow code while runs are open: old runs stay on the old path, new ones take the new path.

`greet_before` and `greet_after` stand for two releases of the same workflow, `greet`. In a real program there is only
one function, and the release is a deployment.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from backstay import Backstay, activity, patched, sleep, workflow


@activity
def say(text: str) -> str:
    return text


@activity
def look_up_title(name: str) -> str:
    return f"Professor {name}"


@workflow(type="greet")
def greet_before(name: str) -> str:
    sleep("400ms")
    return say(f"Hello {name}")


@workflow(type="greet")
def greet_after(name: str) -> str:
    # The new step stands before one that old runs have in their history: without `patched` their replay would not fit.
    if patched("polite"):
        name = look_up_title(name)
    sleep("400ms")
    return say(f"Hello {name}")


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        database = Path(directory) / "greetings.db"
        with Backstay(database, register=[greet_before, say, look_up_title]) as backstay:
            backstay.start(greet_before, "greeting-1", "Ada")
        # Here the new release is deployed. greeting-1 sleeps in the database.
        with Backstay(database, register=[greet_after, say, look_up_title]) as backstay:
            backstay.start(greet_after, "greeting-2", "Ada")
            print("started before the release:", backstay.handle(greet_after, "greeting-1").result())
            print("started after it:          ", backstay.handle(greet_after, "greeting-2").result())


if __name__ == "__main__":
    main()
