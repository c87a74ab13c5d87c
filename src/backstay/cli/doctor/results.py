"""The result of a check, and what the results together say to people and to scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct

Status = Literal["ok", "warning", "error", "skipped"]


class CheckResult(Struct, frozen=True, kw_only=True):
    """`message` says what was found, `fix` what to do about it: None if nothing is to be done."""

    check: str
    status: Status
    message: str
    fix: str | None = None


def ok(check: str, message: str) -> CheckResult:
    return CheckResult(check=check, status="ok", message=message)


def warning(check: str, message: str, fix: str) -> CheckResult:
    return CheckResult(check=check, status="warning", message=message, fix=fix)


def error(check: str, message: str, fix: str) -> CheckResult:
    return CheckResult(check=check, status="error", message=message, fix=fix)


def with_skipped(names: Sequence[str], results: Iterable[CheckResult]) -> list[CheckResult]:
    """The results, and the checks of these names that have none: they need something that the last result says is wrong."""
    found = list(results)
    done = {one.check for one in found}
    why = next((one.check for one in reversed(found) if one.status == "error"), "another check")
    message = f"not looked at: {why} comes first"
    return found + [CheckResult(check=name, status="skipped", message=message) for name in names if name not in done]


def worst(results: Iterable[CheckResult]) -> Status:
    """The status of the whole: skipped checks follow from an error."""
    found = {one.status for one in results}
    return "error" if "error" in found else "warning" if "warning" in found else "ok"
