"""Stream items on the wire, and the directive by which workflow code writes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from backstay.kernel.features.stream import StreamItem, WriteStream
from backstay.kernel.message import Refused
from backstay.kernel.names import Name
from backstay.kernel.values import CODEC
from backstay.protocol.payloads import payload


class WireItem(Struct, frozen=True, kw_only=True):
    payload: Any = None
    payload_codec: str | None = None
    payload_reference: Annotated[str, Meta(min_length=1, max_length=2048)] | None = None
    idempotency_key: Name | None = None
    item_type: Name | None = None
    content_type: Name | None = None

    def item(self, at: str) -> StreamItem:
        if self.payload_codec not in (None, CODEC):
            field = f"{at}.payload_codec"
            raise Refused("unsupported_payload_codec", f"{field}: the one codec is {CODEC!r}", field=field)
        return StreamItem(
            payload=payload(self.payload, f"{at}.payload"),
            payload_reference=self.payload_reference,
            idempotency_key=self.idempotency_key,
            item_type=self.item_type,
            content_type=self.content_type,
        )


WireItems = Annotated[list[WireItem], Meta(min_length=1, max_length=500)]


class WireStream(Struct, frozen=True, kw_only=True):
    """`workflow_stream` beside a side effect."""

    operation: Literal["append", "close", "error"]
    stream_name: Name
    command_identity: Name | None = None
    command_ordinal: Annotated[int, Meta(ge=0)] | None = None
    items: Annotated[list[WireItem], Meta(max_length=500)] = []
    max_pending_items: Annotated[int, Meta(ge=1)] | None = None
    error_reason: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    retention_seconds: Annotated[int, Meta(ge=1, le=10**9)] | None = None

    def command(self, at: str, step: int | None, result: bytes) -> WriteStream:
        if self.operation == "error" and self.error_reason is None:
            field = f"{at}.error_reason"
            raise Refused("invalid_commands", f"{field}: a stream that ends in error says why", field=field)
        ends = self.operation != "append"
        return WriteStream(
            sequence=step,
            result=result,
            stream_name=self.stream_name,
            items=[] if ends else [item.item(f"{at}.items[{n}]") for n, item in enumerate(self.items)],
            max_pending_items=self.max_pending_items,
            finish=ends,
            error_reason=self.error_reason if self.operation == "error" else None,
            retention_seconds=self.retention_seconds,
            command_identity=self.command_identity,
        )
