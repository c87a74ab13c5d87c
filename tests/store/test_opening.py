"""What names a database, and what does not: refused with what to write, and never with its password."""

from __future__ import annotations

from pathlib import Path

import pytest

from backstay import Backstay, StoreError, UnknownDatabase
from backstay.store.address import checked, shown

SECRET = "s3cret"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("sqlite:///shop.db", r"write 'shop.db' for a file in this directory, or '/shop.db'"),
        ("sqlite:////var/shop.db", r"write 'var/shop.db' for a file in this directory, or '/var/shop.db'"),
        ("//shop.db", r"write 'shop.db'"),
        (
            f"mysql://ann:{SECRET}@db/shop",
            r"'mysql://ann@db/shop' is not a database that Backstay supports; use a path",
        ),
        (f"http://ann:{SECRET}@db?password={SECRET}", r"'http://ann@db' is not a database"),
        (f"postgres://ann:{SECRET}@[::1", r"'postgresql://ann@\[::1' is not the address .*: its host is not complete"),
        (f"postgresql://ann:{SECRET}@db:port/shop", "its port is no number; write postgresql://user@host:port/name"),
        (f"postgresql://ann:{SECRET}@db:99999/shop", "its port is no number"),
    ],
)
def test_a_malformed_database_address_is_refused_without_its_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for use in (Backstay(given).open, Backstay(given).replay):
        with pytest.raises(UnknownDatabase, match=says) as caught:
            use()
        assert isinstance(caught.value, StoreError)
        assert SECRET not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("shop.db", "shop.db"),
        ("sqlite:shop.db", "sqlite:shop.db"),
        (f"postgres://ann:{SECRET}@db:5432/shop?sslmode=require", "postgresql://ann@db:5432/shop"),
        (f"postgresql://ann:p@{SECRET}@db/shop", "postgresql://ann@db/shop"),
        (f"postgresql://db/shop?password={SECRET}", "postgresql://db/shop"),
        (f"mysql://:{SECRET}@[::1", "mysql://@[::1"),
    ],
)
def test_an_address_is_shown_without_its_secrets(given: str, said: str) -> None:
    assert shown(given) == said


@pytest.mark.parametrize("hosts", ["db", "db:5432", "[::1]:5432", "one:1,two:2", "/tmp/socket", ""])
def test_every_way_to_write_hosts_is_taken(hosts: str) -> None:
    assert checked(f"postgresql://ann:p@ss@{hosts}/shop?sslmode=require")


def test_a_scheme_before_a_path_is_the_path(tmp_path: Path) -> None:
    with Backstay(f"sqlite:{tmp_path}/shop.db") as app:
        assert app.is_engine
    assert (tmp_path / "shop.db").exists()
