"""Watching for saves: polls the modification times of a program's own files, which works on any file system."""

from __future__ import annotations

import os
import sys
from pathlib import Path

Stamp = tuple[int, int, int]


class FileWatch:
    """The file and every loaded module that lives beside it or below."""

    def __init__(self, file: Path, root: Path) -> None:
        self._file = file.resolve()
        self._root = root
        self._stamps: dict[str, Stamp] = {}
        self._names = 0
        self.look()

    def look(self) -> str | None:
        """A file that was saved since the last look. A file that is missing for a moment, while it is replaced, does not count."""
        saved: str | None = None
        for path in self._files():
            stamp = stamp_of(path)
            before = self._stamps.get(path)
            if stamp is None or stamp == before:
                continue
            self._stamps[path] = stamp
            if before is not None:
                saved = path
        return saved

    def _files(self) -> list[str]:
        if len(sys.modules) != self._names:
            # Only when something new was imported: asking a thousand modules for their file is not free.
            modules = list(sys.modules.values())
            self._names = len(modules)
            self._known = [os.fspath(self._file), *filter(self._ours, map(_file_of, modules))]
        return self._known

    def _ours(self, path: str) -> bool:
        if not path.endswith(".py"):
            return False
        found = Path(path).resolve()
        parts = found.relative_to(self._root).parts if found.is_relative_to(self._root) else ()
        hidden = any(part.startswith(".") or part in ("site-packages", "node_modules") for part in parts)
        return bool(parts) and not hidden


def stamp_of(path: str) -> Stamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _file_of(module: object) -> str:
    return getattr(module, "__file__", None) or ""
