"""Deliberate bugs in how nodes keep to one registry. Each must break the law on some day."""

from __future__ import annotations

from ..mutation import Mutant

STORED = "backstay.server.registries.registry:StoredRegistry"
ALL = "backstay.server.registries.all:Registries"

MUTANTS = [
    Mutant("nobody is told", f"{STORED}._wrote", "await self.on_write(self.kind)", ""),
    Mutant(
        "others are told before it is written",
        f"{STORED}._write",
        "self._store.keep(RegistryEntry(self.kind, namespace, name, body), written)",
        "await self.on_write(self.kind); self._store.keep(RegistryEntry(self.kind, namespace, name, body), written)",
        also=(f"{STORED}._wrote", "await self.on_write(self.kind)", ""),
    ),
    Mutant("acknowledged before others have read", f"{ALL}._tell", "timeout=PATIENCE", "timeout=0"),
    Mutant("told, and not read", f"{ALL}.read", "await registry.load()", ""),
    Mutant("a load that has begun serves who asks", f"{STORED}.load", "asked = self._asked", "asked = 1 << 60"),
    Mutant(
        "loads overtake each other",
        f"{STORED}.load",
        "async with self._turn:\n    if self._served >= mine: return\n    asked = self._asked\n"
        "    for _ in range(READS):\n        if not await self._read(): break\n    self._served = asked",
        "await self._read()",
    ),
    Mutant("what is written during a load is forgotten", f"{STORED}._read", "place not in written", "True"),
    Mutant("what is read during a write is forgotten", f"{STORED}._wrote", "self._loads == loads", "True"),
    Mutant("nobody looks by himself", f"{ALL}.look", "await self.refresh()", ""),
    Mutant(
        "nobody compares what a look has seen", f"{ALL}.look", "seen is None or seen != self._version", "seen is None"
    ),
    Mutant("looked once", f"{ALL}.refresh", "version != self._version", "self._version is None"),
    Mutant(
        "what could not be read counts as read",
        f"{ALL}.load",
        "version = await self._store.registry_version()",
        "version = self._version = await self._store.registry_version()",
    ),
]

CAUGHT = {"what is read during a write is forgotten": 68, "what could not be read counts as read": 299}
"""A seed that catches a mutant, where it takes many."""
