"""Recorded histories against the code of a test: `assert replay("tests/histories", [order, charge]).fits`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, cast

from backstay.sdk.embedded.app import AsyncBackstay, Backstay
from backstay.sdk.replay.history_files import History, runs_of
from backstay.sdk.replay.replayer import Judge, Replayed
from backstay.sdk.worker.registry import Registry


def replay(history: History | Iterable[History], app: AsyncBackstay | Backstay | Iterable[Any]) -> Replayed:
    """Replay exported histories with the code of an app, and return which runs that code would block.

    `history`: an export, as a file or as the value of `client.export(id)`; a folder, for every `.json` file in it; or several of
    these. `app`: an app, or the list that an app registers. No activity runs, and no database is needed. A run that is open is
    replayed to where it stands. Raises `UnreadableHistory` for a file that is no export, was changed, or lacks its payloads.
    """
    histories = [cast("History", history)] if isinstance(history, str | os.PathLike | Mapping) else history
    judge = Judge(_registry(app))
    try:
        return judge.all(runs_of(histories, judge.machine))
    finally:
        judge.close()


def _registry(app: AsyncBackstay | Backstay | Iterable[Any]) -> Registry:
    if isinstance(app, Backstay):
        app = app._app  # pyright: ignore[reportPrivateUsage]  # what it has registered, and nothing else
    if isinstance(app, AsyncBackstay):
        return app.registry
    made = Registry(guard="off")
    made.register(app)
    return made
