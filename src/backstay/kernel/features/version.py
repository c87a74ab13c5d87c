"""Version markers: the branch of a run at a change of its code, recorded once per change id.

A marker counts for the rest of the run. Without one, a run whose definition has changed since it started stays on the
default branch: no marker, no step. A change id that stood in the source when the run was started is always fresh.
"""

from __future__ import annotations

from backstay.kernel.command import StepCommand
from backstay.kernel.event import Recorded, StepEvent
from backstay.kernel.feature import CommandRule, Deciding, Feature, History, Outcome, Plain, Shape
from backstay.kernel.message import Refused
from backstay.kernel.state import Run
from backstay.kernel.turn import Turn
from backstay.kernel.words import About, Phrase, Story, Words

DEFAULT_VERSION = -1


class RecordVersionMarker(StepCommand, frozen=True, kw_only=True, omit_defaults=True, tag="record_version_marker"):
    change_id: str
    version: int
    min_supported: int
    max_supported: int


class VersionMarkerRecorded(StepEvent, frozen=True, kw_only=True, omit_defaults=True):
    change_id: str
    version: int
    min_supported: int
    max_supported: int


class Versions:
    __slots__ = ("markers",)

    def __init__(self) -> None:
        self.markers: dict[str, int] = {}


def is_fresh(
    change_id: str,
    *,
    started_fingerprint: str | None,
    current_fingerprint: str | None,
    started_change_ids: list[str] | None,
    started_compatibility: str | None,
    current_compatibility: str | None,
) -> bool:
    """Whether a change without a marker is new code (take the newest branch) or was deployed under an older run.

    The fingerprints decide; if one of them is unknown, the compatibility markers do.
    """
    if started_change_ids is not None and change_id in started_change_ids:
        return True
    if started_fingerprint is not None and current_fingerprint is not None:
        return started_fingerprint == current_fingerprint
    return started_compatibility == current_compatibility


def check(turn: Turn, command: RecordVersionMarker) -> None:
    if not command.change_id:
        raise Refused("invalid_commands", "a version marker needs a change_id", field="change_id")
    if not command.min_supported <= command.version <= command.max_supported:
        raise Refused(
            "invalid_commands",
            f"version {command.version} of {command.change_id!r} is outside"
            f" {command.min_supported}..{command.max_supported}",
            field="version",
        )


def apply(turn: Turn, command: RecordVersionMarker) -> None:
    turn.record(
        VersionMarkerRecorded(
            sequence=turn.run.step + 1,
            change_id=command.change_id,
            version=command.version,
            min_supported=command.min_supported,
            max_supported=command.max_supported,
        )
    )


def _recorded(run: Run, event: VersionMarkerRecorded, entry: Recorded) -> None:
    run.part(Versions).markers.setdefault(event.change_id, event.version)


def _shape(event: VersionMarkerRecorded) -> Shape:
    return Shape("version marker", _change_id)


def _change_id(event: VersionMarkerRecorded) -> str:
    return event.change_id


def _outcome(event: VersionMarkerRecorded) -> Outcome:
    return Plain(event.version)


def _say_recorded(story: Story, event: VersionMarkerRecorded) -> Phrase:
    return Phrase("◆", f"version {event.version} of change {event.change_id!r} taken")


_ABOUT = About("version", "version_marker", "change_id", ("change_id",))


FEATURE = Feature(
    name="version",
    deciding=Deciding(commands={RecordVersionMarker: CommandRule(check, apply)}),
    history=History(
        evolve={VersionMarkerRecorded: _recorded},
        shapes={VersionMarkerRecorded: _shape},
        outcomes={VersionMarkerRecorded: _outcome},
    ),
    words={VersionMarkerRecorded: Words(_ABOUT, _say_recorded)},
)
