"""What a request costs that one node hands to another: CPU of both ends, for one call at a time and for a hundred at once.

    python bench/hop.py [--calls 5000]

Two nodes in one process, at the PostgreSQL of the tests. The request is answered from memory, so all that is measured is the way:
its proof, its encoding, the HTTP of both ends.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from uuid import uuid4

from measuring import small

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests import postgresql
from tests.server.kit import serving, until

from backstay.protocol.native.nodes import Owner, ReadRates
from backstay.server.server import Server


async def hops(server: Server, node: Owner, calls: int, at_once: int) -> float:
    """Microseconds of CPU of this process for one call."""

    async def caller() -> None:
        for _ in range(calls // at_once):
            await server.links.call(node, ReadRates(namespace="default"))

    before = time.process_time()
    await asyncio.gather(*(caller() for _ in range(at_once)))
    return (time.process_time() - before) / (calls // at_once * at_once) * 1e6


async def measure(calls: int) -> None:
    store = postgresql.with_schema(postgresql.server_url(), f"hop_{uuid4().hex[:8]}")
    async with serving(store=store, still=False) as front, serving(store=store, still=False) as there:
        node = Owner(there.server.node_id() or 0, str(there.http.base_url).rstrip("/"), 1)
        await until(lambda: node.id in front.server.node.shards.nodes)
        await until(lambda: front.server.node_id() in there.server.node.shards.nodes)
        await hops(front.server, node, calls // 5 or 1, 1)
        for at_once in (1, 100):
            most = [await hops(front.server, node, max(calls, at_once), at_once) for _ in range(3)]
            print(f"{at_once:4} at once: {min(most):6.1f} µs of CPU for each call")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=5000)
    small(parser)
    options = parser.parse_args()
    postgresql.begin_session()
    asyncio.run(measure(5 if options.small else options.calls))


if __name__ == "__main__":
    main()
