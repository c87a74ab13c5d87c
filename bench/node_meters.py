"""What `nodes.py` reads before and after its work: what PostgreSQL and the nodes have counted."""

from __future__ import annotations

import re
import urllib.request
from collections import Counter
from typing import Any, NamedTuple

SETTLED = 2.2
"""Seconds until sessions have told what they counted: they do it once a second, after a statement."""

WAL = "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
NOTICES = """
select coalesce(sum(n_tup_ins), 0)::bigint from pg_stat_user_tables where schemaname = $1 and relname = 'notice'
"""
# Told at once. Each statement of ours is its own transaction, so those that write are the commits.
STATEMENTS = r"""
select sum(calls)::bigint as statements, sum(calls) filter (where query ~* '\m(insert|update|delete)\M')::bigint as commits,
  sum(wal_records)::bigint as wal_records
from pg_stat_statements s join pg_database d on d.oid = s.dbid where datname = current_database()
"""
BATCHES = "select sum(committed)::bigint from {schema}.writer"
TOLD = re.compile(r"^(\w*(?:forward|stolen|steal|guest|handed)\w*)(?:\{[^}]*\})? ([0-9.e+]+)$", re.MULTILINE)


class Used(NamedTuple):
    """CPU in seconds."""

    nodes: float
    worker: float
    client: float
    postgresql: float

    def since(self, earlier: Used) -> Used:
        return Used(*(now - before for now, before in zip(self, earlier, strict=True)))


async def counted(connection: Any, schema: str) -> Counter[str]:
    """What the server has counted since it started."""
    found: Counter[str] = Counter()
    found["wal_bytes"] = await connection.fetchval(WAL)
    found["notices"] = await connection.fetchval(NOTICES, schema)
    found["batches"] = await connection.fetchval(BATCHES.format(schema=schema)) or 0
    found.update({name: value or 0 for name, value in (await connection.fetchrow(STATEMENTS)).items()})
    return found


def told_by(urls: list[str], token: str) -> Counter[str]:
    """Counters of nodes that have to do with other nodes, as far as they tell any."""
    found: Counter[str] = Counter()
    for url in urls:
        asked = urllib.request.Request(f"{url}/metrics", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(asked, timeout=10) as answer:
            for name, value in TOLD.findall(answer.read().decode()):
                found[name.removeprefix("backstay_").removesuffix("_total")] += float(value)
    return found


async def waits(connection: Any) -> Counter[str]:
    """What sessions wait for at this moment, but for their clients."""
    rows = await connection.fetch(
        "select wait_event_type || ' ' || wait_event as event, count(*) as n from pg_stat_activity"
        " where state = 'active' and pid <> pg_backend_pid() and wait_event is not null group by 1"
    )
    return Counter({row["event"]: row["n"] for row in rows})
