"""Who may call a server without credentials that listens on loopback: programs of this machine, and pages of this server.

Without a token nothing tells the developer from a web page that the developer's browser shows. A page of another site
reaches a port of this machine in two ways: it calls the address, and the browser says where the call comes from
(`refuse_other_sites`); or it has the name of its own site resolve to 127.0.0.1, and the browser, which believes both to be one
site, sends that name as `Host`.
"""

from __future__ import annotations

from collections.abc import Mapping

from backstay.server.auth import Authenticator, Caller
from backstay.server.http_errors import HttpError

LOCAL = frozenset({"127.0.0.1", "localhost", "[::1]"})


class LoopbackAuthenticator(Authenticator):
    """Refuses what a page of another site asks for."""

    def caller(self, headers: Mapping[str, str]) -> Caller:
        host = headers.get("host", "").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name not in LOCAL:
            raise HttpError(
                403, "foreign_host", f"this server answers at 127.0.0.1 and localhost only, not as {host[:255]!r}"
            )
        return super().caller(headers)
