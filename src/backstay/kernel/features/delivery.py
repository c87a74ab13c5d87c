"""Delivery: a send reaches its receiver. Taking it and what follows from it are one decision."""

from __future__ import annotations

from msgspec.structs import replace

from backstay.kernel.decision import CommandRecord
from backstay.kernel.feature import Deciding, Feature
from backstay.kernel.message import Message, Refused
from backstay.kernel.send import Send
from backstay.kernel.turn import Turn, grown


class Deliver(Message, frozen=True, kw_only=True):
    """`retained`: the record of the command that an earlier delivery of the same send caused, if there was one. `known`: the
    request ids that the parcel seeks and that have a record here."""

    send: Send
    retained: CommandRecord | None = None
    known: frozenset[str] = frozenset()

    def repeats(self) -> tuple[tuple[str, ...], str] | None:
        request_id: str | None = getattr(self.send.parcel, "request_id", None)
        return None if request_id is None else (("signal", "cancel", "terminate"), request_id)

    def recalling(self, record: CommandRecord | None) -> Message:
        return replace(self, retained=record)


def deliver(turn: Turn, message: Deliver) -> None:
    parcel = message.send.parcel
    if not turn.flow.exists and not parcel.creates:
        raise Refused("workflow_not_found", f"there is no workflow {turn.flow.workflow_id!r} to take this send")
    take = turn.machine.receiver(turn.flow, parcel)
    turn.took = grown(turn.took, message.send.key)
    take(turn, message)


class Returned(Message, frozen=True, kw_only=True):
    """To the sender: nobody is there to take this send, because the one that should have made its receiver is lost."""

    send: Send


def returned(turn: Turn, message: Returned) -> None:
    """Who still waits for the receiver makes it once more; of a run that is over nothing will, so its send ends here."""
    run = turn.flow.run
    if run is not None and run.open:
        turn.machine.resend_unanswered(turn)
    else:
        turn.took = grown(turn.took, message.send.key)


FEATURE = Feature(
    name="delivery",
    deciding=Deciding(messages={Deliver: deliver, Returned: returned}),
)
