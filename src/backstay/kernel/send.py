"""Sends: what one instance has to tell another. They never share a transaction.

A send is a row of the sender's commit and disappears with the receiver's. Rows of one sender are taken in their order. Every
parcel can be taken twice without effect, because what it causes is recorded in the receiver's history under an identity of
its own; so a send may be made again whenever somebody doubts that it arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, ClassVar

import msgspec
from msgspec import Struct


class Parcel(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all that is sent; each kind is dealt with by the feature that defines it."""

    creates: ClassVar[bool] = False
    """Whether it may be sent to an instance that does not exist yet."""

    @property
    def seeks(self) -> Collection[str]:
        """Request ids of signals: it asks which of them the receiver has a record of."""
        return ()

    def equipped(self, define: Callable[[Any, str], Any]) -> Parcel:
        """The same with what is known where it arrives: `define` says how a workflow type would be started from here."""
        return self


class Send(Struct, frozen=True):
    """`key` grows along the sends of a sender."""

    key: int
    sender: int
    namespace: str
    workflow_id: str
    parcel: Parcel


_encode = msgspec.json.Encoder().encode
_decoders: dict[type[Parcel], Any] = {}


def pack(parcel: Parcel) -> bytes:
    return _encode(parcel)


def unpack(kind: type[Parcel], body: bytes) -> Parcel:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    return decoder.decode(body)
