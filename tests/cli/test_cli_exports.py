"""Exports as files: signed and redacted without a server, verified from the file alone, read into an empty database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from durable_workflow.history_bundle_verify import verify_bundle
from dw_support import Place, mistaken, until

from backstay import Backstay, activity, sleep, upsert_memo, wait, workflow

SECRET = "s3cret-pin"

PRIVACY = """
def redact(value, context):
    return "[gone]" if context["category"] == "payload" else value.replace("s3cret-pin", "[gone]")

def broken(value, context):
    raise RuntimeError("no policy")
"""


@activity(retries=1, backoff="10ms")
def pay(pin: str) -> str:
    from backstay import activity_info

    if activity_info().number == 1:
        raise ConnectionError(f"no answer for {pin}")
    return f"paid with {pin}"


@workflow
def order(pin: str) -> str:
    upsert_memo(note=pin)
    receipt = pay(pin)
    sleep("10ms")
    return receipt


CODE = """
from backstay import activity, sleep, upsert_memo, workflow

@activity(retries=1, backoff="10ms")
def pay(pin: str) -> str:
    return ""

@workflow
def order(pin: str) -> str:
    upsert_memo(note=pin)
    receipt = pay(pin)
    sleep("10ms")
    return receipt
"""


@pytest.fixture
def exported(place: Place) -> Place:
    """A place with a finished order in its database, and in `order.json`."""
    with Backstay(place.directory / "backstay.db", [order, pay]) as app:
        app.execute(order, "o-1", SECRET)
    assert place.ask("export", "o-1", "-o", "order.json").returncode == 0
    place.write("privacy.py", PRIVACY)
    return place


def bundle(place: Place, name: str = "order.json") -> dict[str, Any]:
    return json.loads((place.directory / name).read_text())


def test_a_good_export_is_verified_from_the_file_alone(exported: Place) -> None:
    (exported.directory / "backstay.db").rename(exported.directory / "elsewhere.db")
    said = exported.ask("export", "verify", "order.json")
    assert said.returncode == 0
    assert "ok: o-1" in said.stdout
    assert "not signed" in said.stdout
    report = json.loads(exported.ask("export", "verify", "order.json", "--json").stdout)
    assert (report["status"], report["workflow_id"], report["history_complete"]) == ("ok", "o-1", True)
    assert verify_bundle(bundle(exported))["status"] == "ok", "the published verifier says the same"
    # Any other spelling of the same content is as good.
    exported.write("pretty.json", json.dumps(bundle(exported), indent=2))
    assert exported.ask("export", "verify", "pretty.json").returncode == 0


def test_without_its_last_member_an_export_is_what_was_summed_up(exported: Place) -> None:
    import hashlib

    text = (exported.directory / "order.json").read_bytes()
    content, _, integrity = text.rpartition(b',"integrity":')
    assert json.loads(integrity[:-1])["checksum"] == hashlib.sha256(content + b"}").hexdigest()


@pytest.mark.parametrize("what", ["a word", "an event", "a member", "the end", "all"])
def test_an_export_that_was_changed_is_not_verified_and_not_imported(exported: Place, what: str) -> None:
    content = bundle(exported)
    match what:
        case "a word":
            content["workflow"]["workflow_type"] = "order2"
        case "an event":
            del content["history_events"][3]
        case "a member":
            del content["signals"]
        case "the end":
            content["history_events"].pop()
        case _:
            content = {"nothing": "of that"}
    exported.write("bad.json", json.dumps(content))
    assert exported.ask("export", "verify", "bad.json").returncode == 1
    assert verify_bundle(content)["status"] == "failed"
    assert "is not imported" in mistaken(exported.ask("import", "bad.json", "--db", "new.db"))
    assert not (exported.directory / "new.db").exists()


@pytest.mark.parametrize("text", ["", "no json", "[1]"])
def test_what_is_no_export_is_told_so(exported: Place, text: str) -> None:
    exported.write("bad.json", text)
    assert "is no export" in mistaken(exported.ask("export", "verify", "bad.json"))


@pytest.mark.contract("EXPORT-13")
def test_an_export_of_a_database_is_signed(exported: Place) -> None:
    key = ("--signing-key", "k3y", "--signing-key-id", "2026")
    assert exported.ask("export", "o-1", "-o", "signed.json", *key).returncode == 0
    content = bundle(exported, "signed.json")
    assert (content["integrity"]["signature_algorithm"], content["integrity"]["key_id"]) == ("hmac-sha256", "2026")
    assert verify_bundle(content, "k3y")["status"] == "ok"
    assert "the key fits" in exported.ask("export", "verify", "signed.json", "--key", "k3y").stdout
    assert exported.ask("export", "verify", "signed.json", "--key", "other").returncode == 1
    assert exported.ask("export", "verify", "order.json", "--key", "k3y").returncode == 1, "it is not signed"
    by_variable = json.loads(exported.ask("export", "o-1", DW_EXPORT_SIGNING_KEY="k3y").stdout)
    assert verify_bundle(by_variable, "k3y")["status"] == "ok"


@pytest.mark.contract("EXPORT-10", "EXPORT-11")
def test_an_export_of_a_database_is_redacted(exported: Place) -> None:
    assert SECRET in json.dumps(bundle(exported))
    assert exported.ask("export", "o-1", "-o", "gone.json", "--redactor", "privacy:redact").returncode == 0
    content = bundle(exported, "gone.json")
    assert SECRET not in json.dumps(content)
    assert (content["redaction"]["applied"], content["redaction"]["policy"]) == (True, "privacy:redact")
    assert verify_bundle(content)["status"] == "ok"
    assert "redacted" in exported.ask("export", "verify", "gone.json").stdout
    assert "redacted" in mistaken(exported.ask("import", "gone.json", "--db", "new.db"))
    failed = mistaken(exported.ask("export", "o-1", "-o", "none.json", "--redactor", "privacy:broken"))
    assert "no policy" in failed
    assert not list(exported.directory.glob("none.json*"))
    assert "no.where" in mistaken(exported.ask("export", "o-1", "--redactor", "no.where:at_all"))


def test_an_app_signs_and_redacts_its_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hide(value: Any, context: dict[str, Any]) -> Any:
        return "[gone]" if context["category"] == "payload" else str(value).replace(SECRET, "[gone]")

    with Backstay(tmp_path / "a.db", [order, pay], export_signing_key="k3y", export_redactor=hide) as app:
        app.execute(order, "o-1", SECRET)
        content = app.export("o-1")
    assert verify_bundle(content, "k3y")["status"] == "ok"
    assert SECRET not in json.dumps(content)
    assert content["redaction"]["policy"].endswith("hide")
    monkeypatch.setenv("DW_EXPORT_SIGNING_KEY", "other")
    with Backstay(tmp_path / "a.db", [order, pay]) as app:
        assert verify_bundle(app.export("o-1"), "other")["status"] == "ok"
    with pytest.raises(ValueError, match=r"package\.module:function"):
        Backstay(tmp_path / "a.db", [order, pay], export_redactor="nowhere")


@pytest.mark.contract("EXPORT-01")
def test_the_command_has_the_name_that_the_seeds_give_it(exported: Place) -> None:
    again = json.loads(exported.ask("workflow:v2:history-export", "o-1").stdout)
    assert again["history_events"] == bundle(exported)["history_events"]


def test_an_imported_export_can_be_looked_at_and_replayed(exported: Place) -> None:
    said = exported.ask("import", "order.json", "--db", "new.db")
    assert said.returncode == 0, said.stderr
    assert "o-1" in said.stdout
    told = exported.ask("history", "o-1", "--json", "--db", "new.db").stdout
    events = [json.loads(line) for line in told.splitlines()]
    before = [json.loads(line) for line in exported.ask("history", "o-1", "--json").stdout.splitlines()]
    assert events == before
    assert "completed" in exported.ask("describe", "o-1", "--db", "new.db").stdout
    assert "o-1" in exported.ask("list", "--db", "new.db").stdout
    exported.write("same_orders.py", CODE)
    replayed = exported.dw("verdict", "o-1", "--app", "same_orders.py", "--db", "new.db")
    assert replayed.returncode == 0, replayed.stderr
    exported.write("other_orders.py", CODE.replace('    sleep("10ms")\n', ""))
    assert exported.dw("verdict", "o-1", "--app", "other_orders.py", "--db", "new.db").returncode == 1
    again = exported.ask("export", "o-1", "--db", "new.db")
    assert again.returncode == 0, again.stderr
    content, first = json.loads(again.stdout), bundle(exported)
    for name in ("history_events", "timeline", "activities", "waits", "timers", "failures", "signals", "updates"):
        assert content[name] == first[name], name
    assert "has workflows already" in mistaken(exported.ask("import", "order.json", "--db", "new.db"))
    assert "has workflows already" in mistaken(exported.ask("import", "order.json"))


def test_a_workflow_is_imported_once(exported: Place) -> None:
    exported.write("again.json", (exported.directory / "order.json").read_text())
    said = mistaken(exported.ask("import", "order.json", "again.json", "--db", "new.db"))
    assert "again.json is not imported: order.json has the same workflow, 'o-1'" in said
    assert not (exported.directory / "new.db").exists()


@workflow
def patient() -> str:
    wait(lambda: False, timeout="1h")
    return "never"


def test_an_open_run_is_imported_as_it_was(place: Place) -> None:
    with Backstay(place.directory / "backstay.db", [patient]) as app:
        handle = app.start(patient, "p-1")
        until(lambda: handle.describe().wait_kind == "condition")
        before = handle.describe()
    assert place.ask("export", "p-1", "-o", "open.json").returncode == 0
    assert "an open run" in place.ask("export", "verify", "open.json").stdout
    assert place.ask("import", "open.json", "--db", "new.db").returncode == 0
    shown = place.ask("describe", "p-1", "--db", "new.db").stdout
    assert "waiting" in shown
    with Backstay(place.directory / "new.db", client_only=True) as app:
        after = app.describe("p-1")
    assert (after.liveness_state, after.wait_kind, after.next_wake) == (
        before.liveness_state,
        before.wait_kind,
        before.next_wake,
    )


def test_a_server_signs_as_its_settings_say(exported: Place) -> None:
    refused = exported.ask("export", "o-1", "--server", "http://127.0.0.1:9", "--signing-key", "k")
    assert "the settings of a server sign and redact its exports" in mistaken(refused)


def test_a_history_is_shown_in_part(exported: Place) -> None:
    def sequences(*asked: str) -> list[int]:
        told = exported.ask("history", "o-1", "--json", *asked)
        assert told.returncode == 0, told.stderr
        return [json.loads(line)["sequence"] for line in told.stdout.splitlines()]

    whole = sequences()
    assert sequences("--tail", "3") == whole[-3:]
    assert sequences("--from", "2", "--to", "4") == [2, 3, 4]
    assert 0 < len(sequences("--kind", "timer")) < len(sequences("--kind", "timer", "--kind", "activity")) < len(whole)
    assert sequences("--text", "no answer for") == sequences("--text", "NO ANSWER")
    assert "completed in" in exported.ask("history", "o-1", "--tail", "6").stdout, "words know what came before"
    assert "did you mean timer" in mistaken(exported.ask("history", "o-1", "--kind", "timr"))
    assert "before it begins" in mistaken(exported.ask("history", "o-1", "--from", "5", "--to", "2"))


def summed(content: dict[str, Any]) -> str:
    """The content with the checksum that fits it: whoever forges an export can do that."""
    import hashlib

    content = dict(content)
    integrity = dict(content.pop("integrity"))
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return json.dumps(content | {"integrity": integrity | {"checksum": hashlib.sha256(text).hexdigest()}})


FORGED: dict[str, Any] = {
    "a namespace with slashes": ("workflow", {"namespace": "../../x"}),
    "an id with slashes": ("workflow", {"instance_id": "../../etc/passwd"}),
    "an id with NUL": ("workflow", {"instance_id": "a\0b"}),
    "a run id with an escape": ("workflow", {"run_id": "\x1b[2J"}),
    "a number for an id": ("workflow", {"instance_id": 5}),
    "no id": ("workflow", {"run_id": None}),
    "a word for a number": ("workflow", {"run_number": "x"}),
    "a number that no column holds": ("workflow", {"run_number": 10**30}),
    "commands that are none": ("commands", [5, None, {"id": 3}]),
    "an event without content": ("history_events", {"payload": None}),
    "a time that is none": ("history_events", {"recorded_at": "9999999-01-01"}),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_export_is_refused_in_one_line(exported: Place, what: str) -> None:
    content = bundle(exported)
    member, change = FORGED[what]
    match member:
        case "commands":
            content[member] = change
        case "workflow":
            content[member] |= change
        case _:
            content[member][0] |= change
    exported.write("bad.json", summed(content))
    said = mistaken(exported.ask("import", "bad.json", "--db", "new.db"))
    assert "bad.json is not imported: " in said
    assert said.isprintable()


@pytest.mark.parametrize("text", ['{"a":' + "[" * 100_000 + "]" * 100_000 + "}", '{"schema":' + "1" * 5000 + "}"])
def test_what_no_parser_takes_is_no_export(exported: Place, text: str) -> None:
    exported.write("bad.json", text)
    for command in (("import", "bad.json", "--db", "new.db"), ("export", "verify", "bad.json")):
        assert "bad.json is no export" in mistaken(exported.ask(*command))
