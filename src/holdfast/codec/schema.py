"""What every blob begins with and how it goes on: the frame of the one schema, `durable_workflow.protocol.Value`.

A Value is a branch byte, then its content. Branches are numbered in the order of the schema and written zig-zag, hence
even.
"""

from __future__ import annotations

from typing import Final

from holdfast.codec.errors import PayloadError

MAGIC: Final = b"\xc3\x01"
HEADER: Final = MAGIC + bytes.fromhex("e2a33dff55802237")
MAX_DEPTH: Final = 500

NULL, BOOLEAN, LONG, DOUBLE, BYTES, STRING, ARRAY, MAP = range(0, 16, 2)


def misframed(problem: str) -> PayloadError:
    return PayloadError("invalid_payload_framing", problem)
