"""Files of a database are for their owner only, and a database has one name."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from backstay import AsyncBackstay, Backstay, StoreError, workflow
from backstay.private_files import create_private

from ..interop.conftest import TOKEN

DW = (sys.executable, "-P", "-m", "backstay.cli.main")
OTHERS = stat.S_IRWXG | stat.S_IRWXO


@workflow(type="nothing")
def nothing() -> None: ...


def modes(directory: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in directory.rglob("*") if file.is_file()}


def test_what_a_server_and_dw_write_is_for_their_owner_only(tmp_path: Path) -> None:
    """With the most generous umask there is: no file may count on it."""
    database = tmp_path / "open.db"
    place = ("--port", "0", "--token", TOKEN, "--store", f"sqlite:{database}")
    server = subprocess.Popen([*DW, "server", *place], stdout=subprocess.PIPE, text=True, umask=0)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().split()[-1]
        headers = {"Authorization": f"Bearer {TOKEN}", "X-Durable-Workflow-Control-Plane-Version": "2"}
        body = {"workflow_id": "o-1", "workflow_type": "order"}
        assert httpx.post(f"{url}/api/workflows", json=body, headers=headers, timeout=30).status_code == 201
        out = tmp_path / "o-1.json"
        subprocess.run([*DW, "export", "o-1", "--db", str(database), "-o", str(out)], check=True, umask=0, timeout=60)
        found = modes(tmp_path)
        assert {"open.db", "open.db-wal", "open.db-shm", "open.db-engine", "o-1.json"} <= found.keys()
        assert {name: oct(mode) for name, mode in found.items() if mode & OTHERS} == {}
    finally:
        server.terminate()
        server.wait(30)
        if server.stdout is not None:
            server.stdout.close()


def test_a_database_that_its_owner_shares_with_a_group_stays_shared(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    path.touch()
    path.chmod(0o660)
    before = os.umask(0)
    try:
        with Backstay(path, [nothing]) as app:
            app.execute(nothing, "n")
            assert set(modes(tmp_path).values()) == {0o660}
    finally:
        os.umask(before)


def test_threads_that_create_one_file_leave_one_file(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    gate = threading.Barrier(8)
    failed: list[BaseException] = []

    def create() -> None:
        try:
            gate.wait(30)
            create_private(str(path))
            path.write_bytes(b"kept")
            create_private(str(path))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failed == []
    assert path.read_bytes() == b"kept"


def test_a_database_with_two_names_is_opened_by_neither(tmp_path: Path) -> None:
    first, second = tmp_path / "a.db", tmp_path / "b.db"
    with Backstay(first, [nothing]) as app:
        app.execute(nothing, "n")
        os.link(first, second)
        with pytest.raises(StoreError, match=r"b\.db has 2 names \(hard links\)"), Backstay(second, [nothing]):
            pass
        assert app.execute(nothing, "m") is None, "what is open goes on"
    with pytest.raises(StoreError, match=r"a\.db has 2 names"), Backstay(first, [nothing]):
        pass
    second.unlink()
    with Backstay(first, [nothing], client_only=True) as app:
        assert {run.workflow_id for run in app.list()} == {"n", "m"}


def test_a_symbolic_link_is_the_file_that_it_names(tmp_path: Path) -> None:
    path, link = tmp_path / "a.db", tmp_path / "link.db"
    link.symlink_to(path)

    async def once() -> None:
        async with AsyncBackstay(link, [nothing]) as app:
            await app.execute(nothing, "n")

    asyncio.run(once())
    assert path.exists()
    assert link.is_symlink()
