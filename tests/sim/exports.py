"""Reading an export back: from the file alone, as somebody would who has nothing else of a run."""

from __future__ import annotations

from msgspec.structs import replace

from backstay.kernel.event import Context, Event, Recorded
from backstay.protocol.bundle_check import ExportBundle, check_bundle
from backstay.protocol.bundle_reading import read_events


class NotWhole(Exception):
    """The file is not what was exported."""


def read(text: bytes, kinds: dict[str, type[Event]]) -> list[Recorded]:
    """The history in a bundle, if its checksum holds."""
    bundle = ExportBundle(text)
    if check_bundle(bundle).findings:
        raise NotWhole
    return list(read_events(bundle.entries("history_events"), kinds))


def said(context: Context) -> Context:
    """What of a context an export says: nothing of a clock that went back, and nothing of a task whose row was gone."""
    told = replace(context, clock_skew=None)
    return told if told.task_id is not None else replace(told, attempt=None, owner=None)
