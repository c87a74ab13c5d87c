"""The effects log of a test: what has happened outside, and must happen once.

    @activity
    def charge(order: str) -> str:
        effects.once(f"charge {order}")

Crash exploration fails when a key was recorded twice. An activity that passes its idempotency key on says so: repeated with the
same idempotency key, an effect is the same effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from threading import Lock

from msgspec import Struct

from backstay.sdk.author.attempt import Attempt, current_attempt


class Effect(Struct, frozen=True):
    """Something that was done outside: by an attempt of an activity, or by other code."""

    key: str
    idempotency_key: str | None
    attempt: Attempt | None

    @property
    def told(self) -> str:
        """What has done it."""
        if self.attempt is None:
            return "code outside of activities"
        one = self.attempt
        return f"attempt {one.number} of activity {one.type!r} (step {one.step} of {one.workflow_id})"


class EffectsLog:
    """What has happened outside in this test, in order. A trial of a crash exploration begins with an empty log."""

    def __init__(self) -> None:
        self._done: list[Effect] = []
        self._lock = Lock()  # activities run on threads
        self.watch: Callable[[Effect], None] | None = None
        """Called before an effect is recorded. It may raise, and then nothing is recorded."""
        self.after: Callable[[Effect], None] | None = None

    def once(self, key: str, idempotency_key: str | None = None) -> bool:
        """Record that something has happened outside which must happen once. Returns whether this is the first time.

        `idempotency_key`: what the outside gets with it, so that it ignores a repetition. Mostly `activity_info().idempotency_key`.
        """
        effect = Effect(key, idempotency_key, current_attempt())
        if self.watch is not None:
            self.watch(effect)
        with self._lock:
            first = all(known.key != key for known in self._done)
            self._done.append(effect)
        if self.after is not None:
            self.after(effect)
        return first

    def count(self, key: str) -> int:
        """How often it has happened. A repetition with the same idempotency key does not count."""
        done = [effect.idempotency_key for effect in self._done if effect.key == key]
        return done.count(None) + len({known for known in done if known is not None})

    @property
    def keys(self) -> list[str]:
        """What has happened, in order."""
        return [effect.key for effect in self._done]

    def clear(self) -> None:
        """Forget everything."""
        self._done.clear()

    def repeated(self) -> list[list[Effect]]:
        """Return what has happened more than once: all effects of each such key, in order."""
        keys = Counter(effect.key for effect in self._done)
        return [
            [effect for effect in self._done if effect.key == key]
            for key, times in keys.items()
            if times > 1 and self.count(key) > 1
        ]


effects = EffectsLog()
"""The effects log of the test that runs."""
