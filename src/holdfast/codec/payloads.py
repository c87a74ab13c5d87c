"""The codec as an engine's host hands it in: the engine itself does not look inside payloads."""

from __future__ import annotations

from typing import Any

from holdfast.codec import avro
from holdfast.codec.errors import PayloadError
from holdfast.codec.values import dumps
from holdfast.kernel.message import Refused


class AvroPayloads:
    def decode(self, blob: bytes) -> Any:
        try:
            return avro.decode(blob)
        except PayloadError as error:
            raise Refused("invalid_payload", f"arguments cannot be read: {error}", field="arguments") from None

    def encode(self, value: Any) -> bytes:
        return dumps(value)
