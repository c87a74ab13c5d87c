"""Output streams: named logs of a run that others read while it goes on. Open → Closed | Errored.

A stream is an instance of its own kind, and its items are its history, so neither the history nor the state of the run
it belongs to grows with them. Chapters: `records` (events and state), `append` (items from callers, and backpressure),
`output` (items from the run's own code, which go with a send of the commit that decided them).
"""

from __future__ import annotations

from backstay.kernel.feature import CommandRule, Deciding, Feature, History, Lifecycle, Sends
from backstay.kernel.features.stream import append, output, records, words
from backstay.kernel.features.stream.append import AppendItems, AppendReply, FinishStream, Items, check_name
from backstay.kernel.features.stream.output import WriteStream, WriteToStream
from backstay.kernel.features.stream.records import (
    SEGMENT,
    Stream,
    StreamClosed,
    StreamItem,
    StreamItemAppended,
    StreamKey,
    StreamOpened,
    StreamRolledOver,
    of,
)

__all__ = [
    "FEATURE",
    "OUTPUT",
    "SEGMENT",
    "AppendItems",
    "AppendReply",
    "FinishStream",
    "Items",
    "Stream",
    "StreamClosed",
    "StreamItem",
    "StreamItemAppended",
    "StreamKey",
    "StreamOpened",
    "StreamRolledOver",
    "WriteStream",
    "WriteToStream",
    "check_name",
    "of",
]

FEATURE = Feature(
    name="stream",
    deciding=Deciding(messages={AppendItems: append.append, FinishStream: append.finish}),
    history=History(
        evolve={
            StreamOpened: records.opened,
            StreamItemAppended: records.appended,
            StreamRolledOver: records.rolled_over,
            StreamClosed: records.closed,
        }
    ),
    lifecycle=Lifecycle(waits_externally=records.waits_externally),
    sends=Sends(
        kind="stream",
        receive={WriteToStream: append.receive_write},
    ),
    words=words.WORDS,
)

OUTPUT = Feature(
    name="stream output",
    deciding=Deciding(
        commands={WriteStream: CommandRule(output.check, output.apply)},
        limits=output.limits,
    ),
)
