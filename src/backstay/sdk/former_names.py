"""Names that were given up for better ones. The old ones are refused, with an error that says the new one.

Options are refused where unknown options are (`author/options.py`), names of the package where it looks names up.
"""

from __future__ import annotations

from collections.abc import Collection

OPTIONS = {
    "existing": ("if_exists", "write if_exists="),
    "heartbeat": ("heartbeat_timeout", "write heartbeat_timeout="),
    "crashes": ("max_crashes", "write max_crashes="),
    "run_tasks": ("client_only", "write client_only=True instead of run_tasks=False"),
}
"""By the former name: the new one, and how to write it."""

NAMES = {
    "attempt": "write activity_info()",
    "aio": "await the .step(...) of a call, as in `await sleep.step('1h')`",
}


def hint(option: str, known: Collection[str]) -> str | None:
    """How a former option is written now, if its new name is one of those that are known here."""
    name, words = OPTIONS.get(option, ("", ""))
    return words if name in known else None


def refuse(name: str) -> None:
    """Raise if a name of the package was given up for another one.

    It is an `ImportError`: from an `AttributeError`, `from backstay import ...` would keep nothing but the name.
    """
    words = NAMES.get(name)
    if words is not None:
        raise ImportError(f"there is no backstay.{name} any more: {words}", name="backstay")
