"""Deliberate bugs in how nodes share worker sessions. Each must break the law on some day."""

from __future__ import annotations

from ..mutation import Mutant

SESSIONS = "backstay.server.sessions:SessionRegistry"

MUTANTS = [
    Mutant("keep without guard", f"{SESSIONS}._write", "self._engine.store.exclusive", "True"),
    Mutant("sent before it is known whose it is", f"{SESSIONS}.holds", "self._engine.store.exclusive", "True"),
    Mutant("what is on its way is not waited for", f"{SESSIONS}.holds", "writing is not None", "False"),
    Mutant("what was not written is believed", f"{SESSIONS}._write_soon", "self.kept.undo(*place)", "pass"),
]
