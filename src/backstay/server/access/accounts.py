"""Accounts: the callers that share the server's connections, memory and waiting requests.

A token that is bound to a namespace shares with all tokens of that namespace, since its administrators can make as many as they
like. Another token has an account of its own. A caller without a credential shares with everybody at its address.
"""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from backstay.server.access.auth import Caller

NODES = "nodes"
"""The account of the other nodes of the database."""


def account_of(caller: Caller, address: str) -> str:
    return stranger(address) if caller.token_id is None else account(caller.namespace, caller.token_id)


def account(namespace: str | None, token_id: str) -> str:
    """The account of a token. `namespace`: the one that it is bound to."""
    return f"token {token_id}" if namespace is None else f"namespace {namespace}"


def stranger(address: str) -> str:
    """The account of callers at an address that have shown no credential, or need none."""
    return f"address {network(address)}"


def network(address: str) -> str:
    """The network of one customer: an IPv6 network (/64) is one, and so is an IPv4 address."""
    try:
        if ip_address(address).version == 6:
            return str(ip_network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        pass  # no IP address: a path of a socket, or nothing
    return address
