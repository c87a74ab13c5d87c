"""The facts about a process that the other nodes of its database read."""

from __future__ import annotations

import os
from socket import gethostname

from backstay.protocol.native.nodes import SPEAKS
from backstay.release import VERSION
from backstay.store.ownership import LEVEL, NodeFacts


def process_facts(
    *,
    name: str | None = None,
    weight: int = 1,
    address: str | None = None,
    executes: bool = False,
    embedded: bool = False,
) -> NodeFacts:
    """`name`: for people; by default its machine and process id. `weight`: its share of the work; 0: it owns nothing."""
    return NodeFacts(
        name=name or f"{gethostname()[:200]}:{os.getpid()}",
        weight=weight,
        address=address,
        executes=executes,
        embedded=embedded,
        version=VERSION,
        speaks=SPEAKS,
        level=LEVEL,
    )
