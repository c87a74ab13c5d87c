"""Writing entries of the registry, and waiting until they are on disk."""

from __future__ import annotations

from collections.abc import Sequence

from backstay.engine.core.world import World
from backstay.store import RegistryEntry, Store
from backstay.store.errors import Unavailable


async def write(world: World, store: Store, entries: Sequence[RegistryEntry]) -> None:
    """Raises `Unavailable`; then they may be written or not."""
    written = world.future()

    def done(error: Unavailable | None) -> None:
        if not written.done():
            written.set_exception(error) if error is not None else written.set_result(None)

    store.keep_all(entries, done)
    await written
