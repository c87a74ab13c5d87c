"""A copier that ends like a killed one: `python -m tests.copying.killed SOURCE TARGET POUR`, at the POUR-th table it fills.

`compare` in place of a number: when all is there, and only the comparison is left.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from backstay.store.copying import copier

from .flows import copied

PAGE = 5


def main(source: str, target: str, when: str) -> None:
    copier.PAGE = PAGE
    pour = copier._pour
    poured = 0

    async def pour_or_die(*given: Any) -> None:
        nonlocal poured
        poured += 1
        if str(poured) == when:
            die()
        await pour(*given)

    copier._pour = pour_or_die
    if when == "compare":
        copier.Copier._compared = die  # type: ignore[method-assign, assignment]
    asyncio.run(copied(source, target))


def die(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
