"""Deliberate bugs in how nodes share worker sessions. Each must break the law on some day."""

from __future__ import annotations

from ..mutation import Mutant

SESSIONS = "backstay.server.workers.sessions:SessionRegistry"

MUTANTS = [
    Mutant("keep without guard", f"{SESSIONS}._write", "self._engine.store.exclusive", "True"),
    Mutant("sent before it is known whose it is", f"{SESSIONS}.holds", "self._engine.store.exclusive", "True"),
    Mutant("nobody looks", f"{SESSIONS}.holds", "await self._look()", "pass"),
    Mutant("whoever is not known is gone", f"{SESSIONS}._may_write", "await self._workers.kept.load()", "pass"),
]
