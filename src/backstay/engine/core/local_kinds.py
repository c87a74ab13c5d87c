"""Kinds of registry entries that are of use to the processes of one database only. A copy of the database leaves them out."""

from __future__ import annotations

NODE_SECRET = "node_secret"  # by it nodes know each other: those of a copy are others
GONE_NODE = "gone_node"
BROWSER_SESSION = "browser_session"  # a cookie opens the server that it was made at
SIGNATURE = "signature"  # of a request that was made once; followed by a colon and a time

_LOCAL = frozenset({NODE_SECRET, GONE_NODE, BROWSER_SESSION, SIGNATURE})


def is_local(kind: str) -> bool:
    return kind.partition(":")[0] in _LOCAL
