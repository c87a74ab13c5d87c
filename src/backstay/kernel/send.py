"""Sends: messages from one instance to another. The two never share a transaction.

A send is a row that the sender's commit writes and the receiver's commit deletes. Sends of one sender are received in their
order. Every parcel may be received twice, and the second time has no effect, because what it causes is recorded in the
receiver's history under an id of its own. So a send can be repeated whenever it is not certain that it arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, ClassVar

import msgspec
from msgspec import Struct


class OutboxMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of everything that is sent. The feature that defines a kind also receives it."""

    creates: ClassVar[bool] = False
    """Whether it may be sent to an instance that does not exist yet."""

    @property
    def asked_request_ids(self) -> Collection[str]:
        """Request ids of signals of which the sender asks whether the receiver has a record."""
        return ()

    def with_definition(self, define: Callable[[Any, str], Any]) -> OutboxMessage:
        """The same, completed where it arrives: `define` says how a workflow type is started there."""
        return self


class Send(Struct, frozen=True):
    """A parcel on its way from one instance to another. Later sends of a sender have larger keys."""

    key: int
    sender: int
    namespace: str
    workflow_id: str
    message: OutboxMessage


_encode = msgspec.json.Encoder().encode
_decoders: dict[type[OutboxMessage], Any] = {}


def pack(message: OutboxMessage) -> bytes:
    return _encode(message)


def unpack(kind: type[OutboxMessage], body: bytes) -> OutboxMessage:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    return decoder.decode(body)
