"""Delivery: a send reaches its receiver. The send is deleted and its message decided in one decision."""

from __future__ import annotations

from msgspec.structs import replace

from backstay.kernel.decision import CommandRecord
from backstay.kernel.feature import Deciding, Feature
from backstay.kernel.message import Message, Refused
from backstay.kernel.send import Send
from backstay.kernel.turn import Turn, appended


class Deliver(Message, frozen=True, kw_only=True):
    """Deliver a send. `retained`: the record of the command that an earlier delivery of the same send caused, if there
    was one. `known`: the request ids of the message that have a record here. `unwritable`: why the database
    refused the rows of what the send creates."""

    send: Send
    retained: CommandRecord | None = None
    known: frozenset[str] = frozenset()
    unwritable: str | None = None

    def idempotency_key(self) -> tuple[tuple[str, ...], str] | None:
        request_id: str | None = getattr(self.send.message, "request_id", None)
        return None if request_id is None else (("signal", "cancel", "terminate"), request_id)

    def with_record(self, record: CommandRecord | None) -> Message:
        return replace(self, retained=record)


def deliver(turn: Turn, delivery: Deliver) -> None:
    message = delivery.send.message
    if not turn.instance.exists and not message.creates:
        raise Refused("workflow_not_found", f"there is no workflow {turn.instance.workflow_id!r} to take this send")
    receive = turn.features.send_rule(turn.instance, message)
    turn.taken_sends = appended(turn.taken_sends, delivery.send.key)
    receive(turn, delivery)


class ReturnSend(Message, frozen=True, kw_only=True):
    """Return a send to its sender: the receiver does not exist, because the send that creates it was lost."""

    send: Send


def return_send(turn: Turn, message: ReturnSend) -> None:
    """Send the start of the receiver once more. A closed run starts nothing any more, so its send is deleted."""
    run = turn.instance.run
    if run is not None and run.is_open:
        turn.features.resend_unanswered(turn)
    else:
        turn.taken_sends = appended(turn.taken_sends, message.send.key)


FEATURE = Feature(
    name="delivery",
    deciding=Deciding(messages={Deliver: deliver, ReturnSend: return_send}),
)
