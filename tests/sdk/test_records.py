"""What the record of a command says if it came from the process that holds the engine."""

from __future__ import annotations

import os
import socket

import pytest

from backstay import workflow
from backstay.sdk.author.handlers import signal
from backstay.sdk.author.wait import wait

from .kit import memory


@workflow
class Waits:
    def __init__(self) -> None:
        self.told = False

    @signal
    def go(self) -> None:
        self.told = True

    def handle(self) -> None:
        wait(lambda: self.told)


@pytest.mark.contract("REC-03")
async def test_a_command_of_an_app_names_its_process_and_host() -> None:
    async with memory(Waits) as app:
        handle = await app.start(Waits, "w-1")
        await handle.signal("go")
        await handle.result()
        key = await app.store.find("default", "w-1")
        assert key is not None
        commands = await app.store.commands(key)
        assert [command.command_type for command in commands] == ["start", "signal"]
        for command in commands:
            about = command.context["request"]
            assert (about["process_id"], about["host"]) == (os.getpid(), socket.gethostname())
            assert (command.source, about["auth_outcome"]) == ("python", "not_required")
            assert command.fingerprint is None, "there was no request"
