"""Memory and connections that one caller can take are bounded: a stranger's, a token's, a namespace's. See `docs/reference/limits.md`.

Each test attacks a server in a process of its own, and measures its memory from outside.
"""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from .hostile import ADMIN, MEGABYTE, HostileCaller, attacked, head, sent, until

TWO_BYTES = b"2\r\nab\r\n" * 4096
JSON = "Content-Type: application/json"


# -- strangers


def test_the_body_of_a_refused_request_is_not_kept(tmp_path: Path) -> None:
    with attacked(tmp_path) as server, ExitStack() as lines:
        for _ in range(5):
            line = lines.enter_context(server.connect())
            line.sendall(head("POST", "/api/workflows", "Transfer-Encoding: chunked"))
            assert line.recv(4096).startswith(b"HTTP/1.1 401 ")
            sent(line, TWO_BYTES, 25 * MEGABYTE)
        assert server.taken < 20 * MEGABYTE


@pytest.mark.parametrize("role", ["stranger", "operator"])
def test_a_refused_body_has_an_end(tmp_path: Path, role: str) -> None:
    """Also one that is refused because it is too large."""
    with attacked(tmp_path, max_body_bytes=MEGABYTE) as server, server.connect() as line:
        token = ADMIN if role == "operator" else None
        line.sendall(head("POST", "/api/workflows", "Transfer-Encoding: chunked", JSON, token=token))
        assert sent(line, b"10000\r\n" + b"a" * 65536 + b"\r\n", 200 * MEGABYTE) < 100 * MEGABYTE


def test_unsigned_bodies_of_an_address_are_bounded(tmp_path: Path) -> None:
    """A signature covers the body, so the body is read before anybody knows who sends it."""
    with (
        attacked(tmp_path, auth="signature", signature_key="k", max_buffered_bytes_per_caller=16 * MEGABYTE) as server,
        ExitStack() as lines,
    ):
        server.begin()
        for _ in range(30):
            line = lines.enter_context(server.connect())
            line.sendall(head("POST", "/api/workflows", "Content-Length: 8000000", JSON))
            sent(line, b"a" * 100_000, 7 * MEGABYTE)
        assert server.taken < 50 * MEGABYTE


def test_silent_connections_of_an_address_are_bounded(tmp_path: Path) -> None:
    with attacked(tmp_path) as server, ExitStack() as lines:
        server.begin()
        for number in range(400):
            line = lines.enter_context(server.connect())
            line.sendall(b"GET /api/health HTTP/1.1\r\nHost: here\r\nX: " + b"a" * (60_000 if number % 2 else 0))
        assert server.healthy()
        assert server.taken < 40 * MEGABYTE


# -- tokens


def test_bodies_of_a_token_are_bounded(tmp_path: Path) -> None:
    with attacked(tmp_path, max_buffered_bytes_per_caller=32 * MEGABYTE) as server, ExitStack() as lines:
        (operator,) = server.team("a", "operator")
        server.begin()
        for _ in range(30):
            line = lines.enter_context(server.connect())
            lengths = ("Content-Length: 8000000", "X-Namespace: a", JSON)
            line.sendall(head("POST", "/api/workflows", *lengths, token=operator))
            sent(line, b"a" * 100_000, 7 * MEGABYTE)
        assert server.taken < 70 * MEGABYTE
        start = {"workflow_type": "order", "input": ["a" * 1_500_000]}
        assert server.call("POST", "/api/workflows", start).status_code == 201, "others are served"


def test_replies_that_a_token_does_not_read_are_bounded(tmp_path: Path) -> None:
    with attacked(tmp_path, max_buffered_bytes_per_caller=32 * MEGABYTE) as server, ExitStack() as lines:
        (operator,) = server.team("a", "operator")
        for number in range(4):
            start = {"workflow_type": "order", "workflow_id": str(number), "input": ["a" * 1_500_000]}
            server.made("/api/workflows", start, operator, headers={"X-Namespace": "a"})
        server.begin()
        for number in range(250):
            line = lines.enter_context(server.connect())
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            path = f"/api/workflows/{number % 4}/history"
            line.sendall(head("GET", path, "X-Namespace: a", token=operator))
        assert until(lambda: server.call("GET", "/api/workflows").status_code == 200)
        assert server.taken < 160 * MEGABYTE, "all of them together have 500 MB"


def test_one_token_leaves_connections_to_others(tmp_path: Path) -> None:
    with (
        attacked(tmp_path, max_connections=150, max_anonymous_connections=50) as server,
        ExitStack() as lines,
    ):
        (viewer,) = server.team("a", "viewer")
        for _ in range(160):
            line = lines.enter_context(server.connect())
            line.sendall(head("GET", "/api/cluster/info", token=viewer))
            assert line.recv(65536)
        for _ in range(20):
            assert server.healthy()
            assert server.call("GET", "/api/cluster/info").status_code == 200


def test_connections_of_one_token_take_bounded_memory(tmp_path: Path) -> None:
    """Each remembers heads, and holds what was sent ahead of a reply."""
    with attacked(tmp_path) as server, ExitStack() as lines:
        (operator,) = server.team("a", "operator")
        server.made(
            "/api/workflows", {"workflow_type": "order", "workflow_id": "o"}, operator, headers={"X-Namespace": "a"}
        )
        server.begin()
        for _ in range(150):
            line = lines.enter_context(server.connect())
            for number in range(32):
                line.sendall(
                    head(
                        "POST",
                        "/api/call/describe-workflow",
                        *("X-Namespace: a", f"X-{number}: " + "a" * 3000, "Content-Length: 21", JSON),
                        token=operator,
                    )
                    + b'{"workflow_id": "oo"}'
                )
                assert line.recv(65536).startswith(b"HTTP/1.1 409 ")
            line.sendall(head("GET", "/api/workflows/o/history?wait_new_event=1", "X-Namespace: a", token=operator))
        assert server.taken < 150 * 100_000


def parked(server: HostileCaller, lines: ExitStack, token: str, namespace: str, count: int) -> list[socket.socket]:
    """Polls of a worker that wait."""
    found: list[socket.socket] = []
    body = json.dumps({"worker_id": "w", "task_queue": "q", "timeout_seconds": 30}).encode()
    for _ in range(count):
        line = lines.enter_context(server.connect())
        about = (f"X-Namespace: {namespace}", f"Content-Length: {len(body)}", JSON)
        line.sendall(head("POST", "/api/worker/workflow-tasks/poll", *about, token=token) + body)
        found.append(line)
    return found


def test_the_polls_of_one_namespace_leave_room_for_another(tmp_path: Path) -> None:
    with attacked(tmp_path, max_parked_polls=40) as server, ExitStack() as lines:
        tokens = {name: server.team(name, "worker")[0] for name in ("a", "b")}
        for name, token in tokens.items():
            registered = {"worker_id": "w", "task_queue": "q", "supported_workflow_types": ["order"]}
            server.made("/api/worker/register", registered, token, headers={"X-Namespace": name})
        parked(server, lines, tokens["a"], "a", 60)
        metrics = "/api/system/operator-metrics"
        assert until(lambda: server.call("GET", metrics).json()["operator_metrics"]["workers"]["parked_polls"] == 40)
        ours = parked(server, lines, tokens["b"], "b", 20)
        start = {"workflow_type": "order", "workflow_id": "o", "task_queue": "q"}
        assert until(lambda: server.call("GET", metrics).json()["operator_metrics"]["workers"]["parked_polls"] == 40)
        server.made("/api/workflows", start, headers={"X-Namespace": "b"})
        ours[0].settimeout(30)
        answers = [one for one in ours if _answered(one, b'"workflow_id":"o"')]
        assert len(answers) == 1, "one of its polls gets the task"


def _answered(line: socket.socket, text: bytes) -> bool:
    line.settimeout(0.3)
    try:
        return text in line.recv(1 << 20)
    except TimeoutError:
        return False


# -- namespaces


def registered(server: HostileCaller, token: str, worker_id: str, **more: Any) -> int:
    body = {"worker_id": worker_id, "task_queue": "q", **more}
    return server.call("POST", "/api/worker/register", body, token, headers={"X-Namespace": "a"}).status_code


def bulky(count: int) -> dict[str, str]:
    return {f"k{number}": "x" * 50 for number in range(count)}


def test_what_workers_of_a_namespace_tell_of_themselves_is_bounded(tmp_path: Path) -> None:
    with attacked(tmp_path) as server:
        (worker,) = server.team("a", "worker")
        server.begin()
        assert registered(server, worker, "w", capability_manifest=bulky(100_000)) == 413
        assert registered(server, worker, "w", process_metrics=bulky(1000)) == 422
        assert registered(server, worker, "w", supported_workflow_types=[f"t{n}" * 40 for n in range(5000)]) == 413
        assert registered(server, worker, "w", capability_manifest=bulky(3000)) == 201
        told = {"worker_id": "w", "process_metrics": bulky(1000)}
        beaten = server.call("POST", "/api/worker/heartbeat", told, worker, headers={"X-Namespace": "a"})
        assert beaten.status_code == 422
        codes = [registered(server, worker, f"w{n}", capability_manifest=bulky(3000)) for n in range(120)]
        assert codes.count(429) > 20, "its share is used up"
        assert server.taken < 150 * MEGABYTE
        assert server.call("GET", "/api/workers", headers={"X-Namespace": "a"}).status_code == 200
        other = {"worker_id": "mine", "task_queue": "q"}
        (ours,) = server.team("b", "worker")
        server.made("/api/worker/register", other, ours, headers={"X-Namespace": "b"})


def test_what_operators_of_a_namespace_keep_is_bounded(tmp_path: Path) -> None:
    with attacked(tmp_path) as server:
        (operator,) = server.team("a", "operator")
        mine = {"X-Namespace": "a"}
        server.begin()

        def saved(name: str, count: int) -> int:
            labels = {f"k{number}": ["x" * 180] * 4 for number in range(count)}
            body = {"name": name, "labels": labels}
            return server.call("POST", "/api/saved-views", body, operator, headers=mine).status_code

        assert saved("v", 80_000) == 413
        assert saved("v", 60) == 422
        codes = [saved(f"v{number}", 50) for number in range(100)]
        assert set(codes) <= {201, 429}
        start = {"workflow_type": "order", "visibility_labels": {f"k{number}": "x" for number in range(20_000)}}
        assert server.call("POST", "/api/workflows", start, operator, headers=mine).status_code == 422
        path = "/api/task-queues/{}/build-ids/drain"
        names = ["q" * 250 + str(number) for number in range(1001)]
        with server.client(operator, **mine) as line:  # on one connection, since they are many
            codes = [line.post(path.format(name), json={"build_id": "b"}).status_code for name in names]
        assert codes[-1] == 429
        assert server.taken < 60 * MEGABYTE


def test_bulk_operations_of_a_namespace_are_bounded(tmp_path: Path) -> None:
    """Also those that have ended: of them nothing is kept that only their work needs."""
    mine = {"X-Namespace": "a"}
    with attacked(tmp_path) as server:
        (operator,) = server.team("a", "operator")
        wide = {"action": "cancel", "filter": {"q": "x" * 100_000}}
        assert server.call("POST", "/api/bulk", wide, operator, headers=mine).status_code == 422
        server.begin()

        def begun(number: int) -> int:
            body = {"action": "signal", "signal_name": "s", "ids": [f"o-{number}"], "input": ["x" * 3_000_000]}
            return server.call("POST", "/api/bulk", body, operator, headers=mine).status_code

        codes = [begun(number) for number in range(30)]
        assert set(codes) <= {202, 429}
        assert codes[0] == 202
        assert server.taken < 150 * MEGABYTE
        assert until(lambda: begun(100) == 202), "there is room again when they have ended"
    with attacked(tmp_path) as server:
        assert server.memory < 150 * MEGABYTE


def test_worker_sessions_of_a_namespace_are_bounded(tmp_path: Path) -> None:
    with attacked(tmp_path) as server:
        (worker,) = server.team("a", "worker")
        offers = [f"{number}-{'x' * 240}" for number in range(100)]
        assert registered(server, worker, "w", capabilities=offers, max_concurrent_worker_sessions=10_000) == 201
        server.begin()

        body = {"worker_id": "w", "requirements": offers, "ttl_seconds": 86_400}
        with server.client(worker, **{"X-Namespace": "a"}) as line:
            codes = [
                line.post("/api/worker/sessions", json=body | {"session_id": f"s-{number}"}).status_code
                for number in range(800)
            ]
        assert codes.count(429) > 50, "its share is used up"
        assert server.taken < 100 * MEGABYTE


def test_what_is_kept_takes_as_little_after_a_restart(tmp_path: Path) -> None:
    with attacked(tmp_path) as server:
        (worker,) = server.team("a", "worker")
        for number in range(70):
            registered(server, worker, f"w{number}", capability_manifest=bulky(3000))
    with attacked(tmp_path) as server:
        assert server.memory < 250 * MEGABYTE
