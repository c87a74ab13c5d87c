"""Worker sessions: a series of activities that one worker runs, because it keeps something between them.

The kernel only carries the request of an activity. The server knows which worker holds a session, and until when.
"""

from __future__ import annotations

from msgspec import Struct

from backstay.kernel.message import Refused
from backstay.kernel.names import check_name


class WorkerSession(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The session that an activity belongs to. The fields are those of the contract."""

    session_id: str
    queue: str | None = None
    connection: str | None = None
    requirements: tuple[str, ...] = ()
    lease_seconds: int = 120
    ttl_seconds: int = 1800
    max_concurrent_activities: int = 1
    create_if_missing: bool = True
    allow_reacquire_after_failure: bool = True


def check(session: WorkerSession | None) -> None:
    if session is None:
        return
    check_name(session.session_id, "worker_session.session_id", "invalid_worker_session")
    check_name(session.queue or None, "worker_session.queue", "invalid_worker_session")
    check_name(session.connection or None, "worker_session.connection", "invalid_worker_session")
    for name in ("lease_seconds", "ttl_seconds", "max_concurrent_activities"):
        if not 1 <= getattr(session, name) <= 10**9:
            raise _invalid(name, f"{name} must be between 1 and 10^9")
    wanted = session.requirements
    if len(set(wanted)) != len(wanted) or not all(0 < len(name) <= 255 for name in wanted):
        raise _invalid("requirements", "requirements must be different from each other, each of 1 to 255 characters")


def _invalid(name: str, message: str) -> Refused:
    return Refused("invalid_worker_session", message, field=f"worker_session.{name}")
