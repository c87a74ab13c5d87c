"""Retry policies. Work keeps the policy with which it was scheduled."""

from __future__ import annotations

from msgspec import Struct

from backstay.kernel.values import Micros, seconds

CRASHES = 10
FOREVER = (1 << 31) - 1


class RetryPolicy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`max_attempts` None is unlimited. The backoff after the n-th failure is the n-th entry, then always the last.

    `max_crashes`: how often in a row the work is started again after an attempt that never reported.
    """

    max_attempts: int | None
    backoff_seconds: list[float] = []
    non_retryable_error_types: list[str] = []
    start_to_close_timeout: float | None = None
    schedule_to_start_timeout: float | None = None
    schedule_to_close_timeout: float | None = None
    heartbeat_timeout: float | None = None
    max_crashes: int = CRASHES
    snapshot_version: int = 1

    def fatal(self, exception_type: str | None, exception_class: str | None) -> bool:
        """Whether the policy names this exception as one that is not retried."""
        named = self.non_retryable_error_types
        return bool(named) and (exception_type in named or exception_class in named)

    def in_budget(self, tries: int) -> bool:
        return self.max_attempts is None or tries < self.max_attempts

    def backoff(self, failures: int) -> Micros:
        steps = self.backoff_seconds
        return seconds(steps[min(failures - 1, len(steps) - 1)]) if steps else 0
