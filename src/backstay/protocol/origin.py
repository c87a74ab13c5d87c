"""Where a command came from, as its record keeps it under `context.request`, and as answers show it.

Over HTTP: route, address, caller label, token id, session id, roles and the authentication of the caller. From a
process that holds the engine: its host, process id and program. Never a credential.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any, cast

from backstay.kernel.decision import CommandRecord

FIELDS = {
    "route": "request_route",
    "caller": "caller_label",
    "auth": "auth_roles",
    "auth_outcome": "auth_outcome",
    "auth_method": "auth_method",
    "token_id": "token_id",
    "session_id": "session_id",
    "address": "address",
    "host": "host",
    "process_id": "process_id",
    "program": "program",
}
"""The fields in the record of a command, with their names in answers."""


def of_process() -> dict[str, Any]:
    """The origin of commands that this process gives itself."""
    return {
        "request": {
            "auth_outcome": "not_required",
            "host": socket.gethostname(),
            "process_id": os.getpid(),
            "program": Path(sys.argv[0] if sys.argv else "").name or "python",
        }
    }


def shown_origin(command: CommandRecord) -> dict[str, Any]:
    """The origin of a command: every field, empty or not."""
    return flat(command.context.get("request")) | {"request_fingerprint": command.fingerprint}


def flat(request: Any) -> dict[str, Any]:
    """The origin in the context of a command, under the names of answers."""
    known = cast("dict[str, Any]", request) if isinstance(request, dict) else {}
    return {name: known.get(field) for field, name in FIELDS.items()}
