"""When the whole database is swept for lost work: regularly by this server, or on request.

Every sweep leaves a *wake marker* that is visible for `wake_signal_ttl_seconds`. A server whose own wake is switched off
(`v2_matching_role_queue_wake`) leaves sweeping to a dedicated process, and sweeps itself only when no marker is visible any
more: if that process dies, lost work is found later, but it is found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from backstay.kernel.values import SECOND, Micros
from backstay.protocol.history import iso
from backstay.server.settings import Settings


class WakeMarker(Struct, frozen=True):
    """The last sweep: its caller, and until when the marker is visible."""

    owner: str
    signalled_at: Micros
    visible_until: Micros


class SweepPolicy:
    def __init__(self, settings: Settings, now: Callable[[], Micros]) -> None:
        self._own = settings.server_id
        self._wakes = settings.v2_matching_role_queue_wake
        self._ttl = settings.wake_signal_ttl_seconds * SECOND
        self._now = now
        self._last: WakeMarker | None = None

    @property
    def marker(self) -> WakeMarker | None:
        """The wake marker, while it is visible."""
        last = self._last
        return last if last is not None and self._now() < last.visible_until else None

    def rests(self) -> bool:
        """Whether this server leaves the next sweep to another process."""
        return not self._wakes and self.marker is not None

    def swept(self, owner: str | None = None) -> None:
        """Leave a marker after a sweep that `owner` has requested; None: this server."""
        now = self._now()
        self._last = WakeMarker(owner or self._own, now, now + self._ttl)

    def shown(self) -> dict[str, Any] | None:
        seen = self.marker
        return (
            None
            if seen is None
            else {
                "owner": seen.owner,
                "signalled_at": iso(seen.signalled_at),
                "visible_until": iso(seen.visible_until),
            }
        )
