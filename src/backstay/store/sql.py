"""SQL in files: named queries, and numbered migrations that only go forward.

`-- name: load_tasks` starts a query; the text up to the next name is its body. Queries that every dialect understands are
in `store/queries.sql`, with `?` for a parameter; each dialect has a `queries.sql` of its own for the rest, which is all
that writes rows of instances.

A line that ends with `-- of shards` narrows a query to the instances of some shards. Without it the query is the one of
its name. With it, where a dialect has many owners, it is `due_of_shards` for `due`: its last parameter, `?of`, has a
byte for every shard, 1 for the wanted ones. One byte is found at once, however many shards are wanted; and the planner
takes `<> 0` for a condition that most rows fulfil, so that it reads the same index as without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from importlib import resources
from itertools import count
from typing import NamedTuple

from backstay.store.errors import IncompatibleStore

OF_SHARDS = "_of_shards"

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_NARROWING = re.compile(r"\n(.*) -- of shards$", re.MULTILINE)


class Migration(NamedTuple):
    number: int
    name: str
    script: str

    @property
    def checksum(self) -> str:
        return sha256(self.script.encode()).hexdigest()


def queries(dialect: str, *, numbered: bool = False) -> dict[str, str]:
    """The queries of a dialect's package, with the shared ones. `numbered`: it writes a parameter as `$1`."""
    shared = _named("backstay.store")
    own = _named(dialect)
    whole = {name: _NARROWING.sub("", query) for name, query in (shared | own).items()}
    if not numbered:
        return whole
    narrow = {f"{name}{OF_SHARDS}": query for name, query in (shared | own).items() if _NARROWING.search(query)}
    return {name: number(query) for name, query in whole.items()} | {
        name: _narrowed(query) for name, query in narrow.items()
    }


def number(statement: str) -> str:
    """The statement with `$1`, `$2`, ... in the place of each `?`."""
    numbers = count(1)
    return re.sub(r"\?", lambda _: f"${next(numbers)}", statement)


def _narrowed(statement: str) -> str:
    """With the line that names shards, and their parameter as the last."""
    numbered = number(_NARROWING.sub(r"\n\1", statement).replace("?of", "$of"))
    last = max((int(parameter) for parameter in re.findall(r"\$(\d+)", numbered)), default=0)
    return numbered.replace("$of", f"${last + 1}")


def _named(package: str) -> dict[str, str]:
    text = resources.files(package).joinpath("queries.sql").read_text(encoding="utf-8")
    parts = _NAME.split(text)
    return {name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def migrations(package: str) -> list[Migration]:
    """Every `NNN_name.sql`, in order."""
    steps: list[Migration] = []
    for file in resources.files(package).joinpath("migrations").iterdir():
        number, _, name = file.name.removesuffix(".sql").partition("_")
        if file.name.endswith(".sql"):
            steps.append(Migration(int(number), name, file.read_text(encoding="utf-8")))
    return sorted(steps)


def check_version(where: str, version: int, steps: list[Migration]) -> None:
    newest = steps[-1].number
    if version > newest:
        raise IncompatibleStore(
            f"{where} has schema {version}, this version of Backstay knows up to {newest}; upgrade Backstay"
        )


def check_recorded(where: str, recorded: Iterable[tuple[int, str]], steps: list[Migration]) -> None:
    """`recorded` are (number, checksum) of the migrations that made this database."""
    ours = {step.number: step.checksum for step in steps}
    for number, checksum in recorded:
        if ours.get(number, checksum) != checksum:
            raise IncompatibleStore(
                f"{where} was made with another migration {number} than this version of Backstay has;"
                " open it with the version that created it"
            )
