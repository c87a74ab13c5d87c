"""Named SQL: `-- name: load_tasks` starts a query; the text up to the next name is its body."""

from __future__ import annotations

import re
from importlib import resources

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def queries(package: str, file: str) -> dict[str, str]:
    text = resources.files(package).joinpath(file).read_text(encoding="utf-8")
    parts = _NAME.split(text)
    return {name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def migrations(package: str) -> list[tuple[int, str, str]]:
    """(number, name, script) of every `NNN_name.sql`, in order."""
    found: list[tuple[int, str, str]] = []
    for file in resources.files(package).joinpath("migrations").iterdir():
        number, _, name = file.name.removesuffix(".sql").partition("_")
        if file.name.endswith(".sql"):
            found.append((int(number), name, file.read_text(encoding="utf-8")))
    return sorted(found)
