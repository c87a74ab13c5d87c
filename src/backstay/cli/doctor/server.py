"""Checks of a server from outside: its address, TLS, the token, releases, clocks, and whether it is ready."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from ipaddress import ip_address
from socket import create_connection
from typing import Any

from backstay.cli.control import Answer, Unanswered, answer_of
from backstay.cli.doctor import causes, clocks
from backstay.cli.doctor.results import CheckResult, error, ok, warning
from backstay.cli.options import ServerAt
from backstay.kernel.values import SECOND
from backstay.link.http import Origin, origin_of
from backstay.link.http import said as reason_of
from backstay.release import VERSION

NAMES = ("address", "tls", "server", "clock", "token", "role", "namespace", "versions", "ready")

SOON = 14 * 86_400  # seconds in which a certificate should be renewed
WAIT = 5.0  # seconds for a connection
FIXES = {
    "database_unavailable": "read the log of the server; it goes on by itself when the database can commit again",
    "engine_elsewhere": "send traffic to the other process; to share the work of one database use PostgreSQL",
    "draining": "wait until it has stopped, or end it with `dw node drain NAME --undo`",
}


def checks(server: ServerAt, namespace: str) -> Iterator[CheckResult]:
    """Ends with the first result that makes the rest impossible."""
    try:
        origin = origin_of(server.url)
    except ValueError as wrong:
        yield error("address", str(wrong), "write http://HOST:PORT or https://HOST")
        return
    try:
        create_connection((origin.host, origin.port), WAIT).close()
    except OSError as problem:
        message = f"{origin.host}:{origin.port} cannot be reached: {reason_of(problem)}"
        yield error("address", message, "start `dw server` there, or correct host and port; look at firewalls between")
        return
    yield ok("address", f"something listens at {origin.host}:{origin.port}")
    found = _tls(origin)
    yield found
    if found.status == "error":
        return
    yield from _of_backstay(server, namespace)


def _of_backstay(server: ServerAt, namespace: str) -> Iterator[CheckResult]:
    before = time.time_ns() // 1000
    try:
        health = answer_of(server, "/api/health")
        after = time.time_ns() // 1000
        if "timestamp" not in health.body:
            message = f"what answers at {server.url} is no server of Backstay (status {health.status})"
            yield error("server", message, "correct the address; with a proxy between, name the path that it forwards")
            return
        yield ok("server", "a server of Backstay answers")
        there = round(datetime.fromisoformat(health.body["timestamp"]).timestamp() * SECOND)
        yield clocks.compared((before + after) // 2, there, after - before, "the server")
        caller = answer_of(server, "/api/session")
        yield (found := _token(server, caller))
        if found.status == "error":
            return
        yield (found := _role(caller.body))
        if found.status == "error":
            return
        told = answer_of(server, "/api/causes", namespace=namespace)
        yield _namespace(namespace, told)
        yield _versions(answer_of(server, "/api/cluster/info").body)
        yield _ready(answer_of(server, "/api/ready").body)
        if told.status == 200:
            yield from causes.checks(told.body["verdict"]["sentence"], told.body["causes"])
    except Unanswered as problem:
        yield error("server", f"{server.url}: {problem}", "is it http or https, and is a proxy between? See its log")


def _tls(origin: Origin) -> CheckResult:
    if origin.scheme == "http":
        if _is_here(origin.host):
            return ok("tls", "not needed: the server is on this machine")
        message = "tokens and payloads go over the network in clear"
        fix = "serve TLS (--tls-certificate and --tls-key, or a proxy), and write https://"
        return warning("tls", message, fix)
    context = ssl.create_default_context()
    try:
        with (
            create_connection((origin.host, origin.port), WAIT) as plain,
            context.wrap_socket(plain, server_hostname=origin.host) as wrapped,
        ):
            certificate: dict[str, Any] = wrapped.getpeercert() or {}
    except ssl.SSLCertVerificationError as problem:
        return error("tls", f"the certificate is refused: {problem.verify_message}", _fix_of(problem.verify_code))
    except OSError as problem:
        fix = "does the server speak plain HTTP? Then write http://"
        return error("tls", f"no secure connection: {reason_of(problem)}", fix)
    ends = ssl.cert_time_to_seconds(certificate["notAfter"])
    day = datetime.fromtimestamp(ends, UTC).strftime("%Y-%m-%d %H:%M UTC")
    if ends - time.time() < SOON:
        return warning("tls", f"the certificate ends at {day}", "renew it and restart the server, one node at a time")
    return ok("tls", f"the certificate is trusted and ends at {day}")


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _fix_of(code: int) -> str:
    match code:
        case 10:  # it has expired
            return "renew the certificate and restart the server"
        case 62 | 64:  # another name or address
            return "use a name that is in the certificate, or make one for this name"
        case _:
            return "trust its authority: SSL_CERT_FILE=ca.pem names a file with it"


def _token(server: ServerAt, caller: Answer) -> CheckResult:
    if caller.status == 401:
        message = "the server refuses this token" if server.token else "the server wants a token, and none was given"
        return error("token", message, "give it with --token or DW_TOKEN; `dw token create` makes one")
    if caller.status != 200:
        return error("token", _message(caller), "correct --token, --server, or what is between")
    if caller.body["authentication"] == "none":
        message = "the server asks for no token: everybody who reaches it may do everything"
        return warning("token", message, "set DW_TOKEN, or one token a role, and leave out `--auth none`")
    return ok("token", "accepted")


def _role(caller: dict[str, Any]) -> CheckResult:
    roles: list[str] = caller["roles"]
    if not {"viewer", "operator", "admin"} & set(roles):
        message = f"the token is for {', '.join(roles)}: it may not look at runs and workers"
        return error("role", message, "use a token of the role viewer or operator: `dw token create --role viewer`")
    return ok("role", f"the token is for {caller['role']}")


def _namespace(namespace: str, told: Answer) -> CheckResult:
    if told.status == 200:
        return ok("namespace", f"{namespace} can be read")
    return error("namespace", _message(told), f"name another one with --namespace, or create {namespace}")


def _versions(info: dict[str, Any]) -> CheckResult:
    there = info["version"]
    if there == VERSION:
        return ok("versions", f"the server and this machine have release {VERSION}")
    message = f"the server has release {there}, this machine {VERSION}"
    return warning("versions", message, f"pip install 'backstay=={there}' here, or upgrade the server")


def _ready(told: dict[str, Any]) -> CheckResult:
    reasons: list[dict[str, str]] = told["reasons"]
    if not reasons:
        return ok("ready", "the server takes work")
    message = "; ".join(reason["message"] for reason in reasons)
    return error("ready", message, FIXES.get(reasons[0]["code"], "wait; the log of the server says what it does"))


def _message(answer: Answer) -> str:
    return answer.body.get("message") or f"status {answer.status}"
