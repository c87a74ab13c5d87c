"""What `tools.compat` runs with every combination: an app with pydantic in it, then a server with a worker of its own.

Run in an empty directory, with the `dw` of the environment on the PATH.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pydantic

from backstay import Backstay, Client, activity, sleep, workflow


class Order(pydantic.BaseModel):
    id: str
    cents: int


@activity
def charge(order: Order) -> Order:
    return Order(id=order.id, cents=order.cents * 2)


@workflow
def order(wanted: Order) -> int:
    charged = charge(wanted)
    sleep("10ms")
    return charged.cents


def embedded() -> None:
    with Backstay("embedded.db", register=[order, charge]) as app:
        assert app.execute(order, "o-1", Order(id="a", cents=21)) == 42


def remote() -> None:
    token = "compat"
    environment = os.environ | {"DW_TOKEN": token}
    command = ["dw", "server", "--port", "0", "--store", "sqlite:server.db"]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    worker: subprocess.Popen[bytes] | None = None
    try:
        assert server.stdout is not None
        url = server.stdout.readline().rpartition(" ")[2].strip()
        worker = subprocess.Popen(["dw", "worker", "--server", url, __file__], env=environment, cwd=Path.cwd())
        with Client(url, token=token) as client:
            assert client.start(order, "o-1", Order(id="a", cents=21)).result(timeout=60) == 42
    finally:
        for process in filter(None, (worker, server)):
            process.terminate()
            process.wait(30)
        if server.stdout is not None:
            server.stdout.close()


if __name__ == "__main__":
    embedded()
    remote()
    sys.exit(0)
