"""Sends: messages from one instance to another, which never share a transaction.

A send is a row that the sender's commit writes and the receiver's commit deletes. Sends of one sender are received in
their order. Every outbox message may be received twice. The second time has no effect, because the receiver's history
has its effect under an id of its own. So a send can be repeated whenever it is not certain that it arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, ClassVar

import msgspec
from msgspec import Struct


class OutboxMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all messages that are sent. The feature that defines a kind also receives it."""

    creates: ClassVar[bool] = False
    """Whether it may be sent to an instance that does not exist yet."""

    @property
    def asked_request_ids(self) -> Collection[str]:
        """The request ids of signals that the sender wants confirmed: does the receiver have a record of them?"""
        return ()

    def with_definition(self, define: Callable[[Any, str], Any]) -> OutboxMessage:
        """This message with the definition of its workflow type, which `define` provides at the receiver."""
        return self


class Send(Struct, frozen=True):
    """An outbox message on its way from one instance to another. Later sends of a sender have larger keys."""

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
