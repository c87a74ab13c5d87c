"""Every test of the command line has a directory with a shop in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dw_support import SHOP, Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    made.write("shop.py", SHOP)
    try:
        yield made
    finally:
        made.close()
