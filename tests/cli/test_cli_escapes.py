"""Text of others never commands the terminal: notes, reasons and types may hold anything."""

from __future__ import annotations

from dw_support import Place

from backstay import Backstay

EVIL = "\x1b]0;PWN\x07\x1b[31mEVIL\x1b[2J\u202e\r\x9b31m"


def test_what_others_wrote_is_printed_without_its_control_characters(place: Place) -> None:
    with Backstay(place.directory / "backstay.db", []):
        pass
    made = place.ask("token", "create", "--role", "viewer", "--note", f"note {EVIL}")
    assert made.returncode == 0, made.stderr
    nightly = ("shop.py:nap", "nightly", "1", "--cron", "0 3 * * *", "--note", f"note {EVIL}")
    created = place.ask("schedule", "create", *nightly)
    assert created.returncode == 0, created.stderr
    assert place.ask("schedule", "pause", "nightly", "--note", f"gone {EVIL}").returncode == 0
    assert place.ask("start", "shop.py:nap", "nap-1", "1").returncode == 0
    assert place.ask("signal", "nap-1", f"wake {EVIL}").returncode == 2, "there is no such signal"
    for command in (
        ("token", "list"),
        ("audit",),
        ("schedule", "list"),
        ("schedule", "describe", "nightly"),
        ("schedule", "history", "nightly"),
        ("describe", EVIL),
        ("history", f"x{EVIL}"),
    ):
        said = place.ask(*command)
        told = said.stdout + said.stderr
        assert told, command
        assert all(char.isprintable() or char in "\n\t" for char in told), (command, told)
    assert "EVIL" in place.ask("token", "list").stdout
    audit = place.ask("audit").stdout
    assert "EVIL" in audit
    assert all(line.startswith("20") for line in audit.splitlines()), "each line is one entry"
