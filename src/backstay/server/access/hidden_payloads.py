"""Answers to callers that may not read payloads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from backstay.protocol.hidden_payloads import hide
from backstay.server.http.errors import HttpError


def hidden(body: Mapping[str, Any] | Struct) -> Mapping[str, Any]:
    """The same body without payloads, with a note that they are hidden."""
    return {**hide(body), "payloads_hidden": True}


def no_payloads() -> HttpError:
    """The refusal of an answer that is sent as it was written, payloads included."""
    return HttpError(
        403,
        "payloads_not_readable",
        "this token may not read payloads, and this answer needs them",
        remediation="Use a token that may read payloads: dw token create --role viewer",
    )
