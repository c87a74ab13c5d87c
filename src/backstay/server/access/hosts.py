"""The host names to which a server without credentials answers.

Without a token the server cannot distinguish an operator from a web page in the operator's browser. A page of another
site reaches this server in two ways: it calls the address, and the browser sends its origin (`refuse_other_sites`); or
it lets the name of its own site resolve to the address of this server, and the browser, to which both are one site,
sends that name as `Host`. So such a server answers to known names only: to this machine's own if it listens on
loopback, otherwise to any IP address, which no site can have as its name, and to those of the setting `allowed_hosts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address

from backstay.server.http.errors import HttpError
from backstay.server.settings import Settings

LOCAL = frozenset({"127.0.0.1", "localhost", "[::1]"})


class KnownHosts:
    """The names of a server with these settings."""

    def __init__(self, settings: Settings) -> None:
        self._names = LOCAL | {name.lower() for name in settings.allowed_hosts}
        self._loopback = is_loopback(settings.host)

    def check(self, headers: Mapping[str, str]) -> None:
        """Refuse a request that was sent to another name."""
        host = headers.get("host", "").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name in self._names or (not self._loopback and _is_address(name)):
            return
        raise HttpError(
            403,
            "foreign_host",
            f"this server requires no token, so it accepts only requests for host names that it knows; {host[:255]!r} is not one",
            remediation="Call it at 127.0.0.1 or localhost, name the host in the setting allowed_hosts, or require tokens"
            " (auth=token).",
        )


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_address(name: str) -> bool:
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
