"""Histories as files: exports that are replayed without a database."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

from backstay.kernel.machine import Machine
from backstay.protocol.bundle_check import ExportBundle, NoBundle, check_bundle
from backstay.protocol.recorded_run import RecordedRun, UnreadableRun, of_export

History = str | os.PathLike[str] | Mapping[str, Any]
"""An export: a file, a folder of files, or the value of `client.export(id)`."""


class UnreadableHistory(ValueError):
    """A file is no export, was changed since it was written, or lacks what a replay needs."""


def runs_of(histories: Iterable[History], machine: Machine) -> Generator[RecordedRun]:
    """Read exports, one at a time. Raises `UnreadableHistory`."""
    for history in histories:
        if isinstance(history, Mapping):
            yield _run(json.dumps(history).encode(), "the export", machine)
            continue
        for file in files_of(Path(history)):
            yield read_run(file, machine)


def files_of(path: Path) -> list[Path]:
    """Return this file, or those of a folder."""
    if not path.is_dir():
        return [path]
    found = sorted(path.rglob("*.json"))
    if not found:
        raise UnreadableHistory(f"{path} has no histories: none of its files ends with .json")
    return found


def read_run(file: Path, machine: Machine) -> RecordedRun:
    """Read the run of one file. Raises `UnreadableHistory`."""
    try:
        text = file.read_bytes()
    except OSError as error:
        raise UnreadableHistory(f"{file} cannot be read: {error.strerror}") from None
    return _run(text, str(file), machine)


def _run(text: bytes, name: str, machine: Machine) -> RecordedRun:
    try:
        bundle = ExportBundle(text)
        findings = check_bundle(bundle).findings
        if findings:
            raise UnreadableHistory(f"{name} cannot be replayed: {findings[0][1]}")
        return of_export(bundle, machine.kinds)
    except NoBundle as problem:
        raise UnreadableHistory(f"{name} is no export: {problem}") from None
    except UnreadableRun as problem:
        raise UnreadableHistory(f"{name} cannot be replayed: {problem}") from None
