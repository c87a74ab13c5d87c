"""The frame that every blob begins with, and its one schema, `durable_workflow.protocol.Value`.

A Value is a branch byte, then its content. Branches are numbered in the order of the schema and written zig-zag, hence
even.
"""

from __future__ import annotations

import json
from typing import Final

from backstay.codec.errors import PayloadError

MAGIC: Final = b"\xc3\x01"
HEADER: Final = MAGIC + bytes.fromhex("e2a33dff55802237")
FINGERPRINT: Final = f"crc64-avro:{HEADER[2:].hex()}"


def _record(name: str, field: str, type: object) -> dict[str, object]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": type}]}


SCHEMA_JSON: Final = json.dumps(
    {
        "type": "record",
        "name": "Value",
        "namespace": "durable_workflow.protocol",
        "fields": [
            {
                "name": "value",
                "type": [
                    "null",
                    *(
                        _record(f"{kind.title()}Value", kind, kind)
                        for kind in ("boolean", "long", "double", "bytes", "string")
                    ),
                    _record("ArrayValue", "items", {"type": "array", "items": "Value"}),
                    _record("MapValue", "entries", {"type": "map", "values": "Value"}),
                ],
            }
        ],
    },
    separators=(",", ":"),
)
"""The schema itself, for readers who have nothing else."""

MAX_DEPTH: Final = 500

NULL, BOOLEAN, LONG, DOUBLE, BYTES, STRING, ARRAY, MAP = range(0, 16, 2)


def misframed(problem: str) -> PayloadError:
    return PayloadError("invalid_payload_framing", problem)
