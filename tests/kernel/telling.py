"""A plain `Format`, for tests that put histories in words."""

from __future__ import annotations

from backstay.kernel.values import SECOND, Micros
from backstay.kernel.words import Format


class PlainFormat:
    """Times in seconds, payloads as they are."""

    def span(self, length: Micros, /) -> str:
        return f"{length / SECOND:g} s"

    def moment(self, at: Micros, /) -> str:
        return f"{at / SECOND:g}"

    def value(self, blob: bytes | None, /) -> str:
        return repr(blob)

    def arguments(self, blob: bytes | None, /) -> str:
        return "" if blob is None else repr(blob)

    def shortened(self, text: str, /) -> str:
        return text.replace("\n", " ")

    def failure(self, type: str | None, message: str, /) -> str:
        return f"{type}: {self.shortened(message)}"


PLAIN: Format = PlainFormat()
