"""The interface between the SDK and an engine, in this process or across a network: one method, `call`."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, TypeVar

from backstay.protocol.requests import Request

R = TypeVar("R")


class Transport(Protocol):
    def call(self, request: Request[R]) -> Awaitable[R]: ...
