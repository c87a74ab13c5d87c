"""The codec as an engine's host hands it in: the engine itself does not look inside payloads."""

from __future__ import annotations

from typing import Any

from holdfast.codec import avro
from holdfast.codec.values import dumps


class AvroPayloads:
    def decode(self, blob: bytes) -> Any:
        return avro.decode(blob)

    def encode(self, value: Any) -> bytes:
        return dumps(value)
