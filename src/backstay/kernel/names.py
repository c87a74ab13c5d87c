"""Names: of types, queues, connections, builds, and the ids that callers choose. Text that every database can hold.

A name is checked before anything is recorded under it. PostgreSQL holds no NUL, neither database holds half of a surrogate pair,
and an index holds nothing of any length. A decision with such a name would be made, and could then not be written.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from backstay.kernel.message import Refused

MAX_NAME = 255
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME, pattern=r"^[^\x00]*$")]
"""A name in a message of the wire, whose text cannot have half of a surrogate pair."""

KNOWN: Final[set[str | None]] = {None}
"""Names that have been checked: most decisions have no others. None is the name that was not given."""
_ENOUGH = 4096


def check_name(name: str | None, field: str, reason: str = "invalid_commands") -> None:
    """Refuse a text that cannot be the name of anything."""
    if name in KNOWN:
        return
    if name is None or not is_name(name):
        raise Refused(
            reason, f"{field} must be 1 to {MAX_NAME} characters, without NUL and without half surrogates", field=field
        )
    if len(KNOWN) >= _ENOUGH:
        KNOWN.clear()
        KNOWN.add(None)
    KNOWN.add(name)


def is_name(text: str) -> bool:
    """Whether this text can be the name of something."""
    return 1 <= len(text) <= MAX_NAME and is_storable(text)


def is_storable(text: str) -> bool:
    """Whether every database can hold this text."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False
