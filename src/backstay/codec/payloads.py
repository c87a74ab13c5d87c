"""The codec as an engine's host hands it in: the engine itself does not look inside payloads."""

from __future__ import annotations

from typing import Any

from backstay.codec import avro
from backstay.codec.errors import PayloadError
from backstay.codec.values import dumps
from backstay.kernel.message import Refused


class AvroPayloads:
    def decode(self, blob: bytes) -> Any:
        try:
            return avro.decode(blob)
        except PayloadError as error:
            raise Refused("invalid_payload", f"arguments cannot be read: {error}", field="arguments") from None

    def encode(self, value: Any) -> bytes:
        return dumps(value)
