"""Sending: what one instance has to tell another is delivered once its own commit is on disk, and until it is taken.

The rows are the truth. What this engine has under way it does not pick up a second time; after a crash the next one finds
the rows. To one receiver they are delivered in their order. Delivering twice is harmless.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from holdfast.kernel.decision import CommandRecord
from holdfast.kernel.features.delivery import Deliver
from holdfast.kernel.message import Refused
from holdfast.kernel.send import Send, unpack

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

log = logging.getLogger("holdfast.engine")

PAGE = 500
COMMANDS = ("signal", "cancel", "terminate")

Receiver = tuple[str, str]


class Sending:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._under_way: set[int] = set()
        self._lines: dict[Receiver, deque[Send]] = {}  # behind a send whose command is being looked up

    def dispatch(self, send: Send) -> None:
        """Bring a send whose commit is on disk to its receiver."""
        if send.key in self._under_way or not self._engine.holder:
            return
        self._under_way.add(send.key)
        receiver = (send.namespace, send.workflow_id)
        line = self._lines.get(receiver)
        if line is not None:
            line.append(send)
        elif _request_id(send) is None:
            self._deliver(Deliver(send=send))
        else:
            self._lines[receiver] = deque([send])
            self._engine.world.spawn(self._deliver_line(receiver), "holdfast-send")

    async def _deliver_line(self, receiver: Receiver) -> None:
        line = self._lines[receiver]
        try:
            while line:
                retained = await self._retained(line[0])
                self._deliver(Deliver(send=line.popleft(), retained=retained))
        finally:
            del self._lines[receiver]
            self._under_way.difference_update(send.key for send in line)  # the store failed: picked up when it is back

    async def _retained(self, send: Send) -> CommandRecord | None:
        """Of a parcel that causes a command: its record, which shows that it came through before."""
        request_id = _request_id(send)
        key = None if request_id is None else await self._engine.key_of(send.namespace, send.workflow_id)
        if request_id is None or key is None:
            return None
        for kind in COMMANDS:
            found = await self._engine.retained(key, kind, request_id)
            if found is not None:
                return found
        return None

    def _deliver(self, message: Deliver) -> None:
        send = message.send

        def taken(value: Any, error: BaseException | None) -> None:
            self._under_way.discard(send.key)
            if isinstance(error, Refused):
                log.warning("a send to workflow %s was not taken: %s", send.workflow_id, error)

        self._engine.address(send.namespace, send.workflow_id, message, taken)

    async def pick_up(self) -> None:
        """Deliver what is on disk and not under way: after a start, or when another process has written it."""
        after = 0
        while True:
            page = await self._engine.store.sends(after, PAGE)
            for row in page:
                parcel = unpack(self._engine.machine.parcel_kinds[row.kind], row.body)
                self.dispatch(Send(row.key, row.sender, row.namespace, row.workflow_id, parcel))
            if len(page) < PAGE:
                return
            after = page[-1].key


def _request_id(send: Send) -> str | None:
    return getattr(send.parcel, "request_id", None)
