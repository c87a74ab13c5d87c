"""Checking an export: its checksums and, with a key, its signature.

A file of any spelling is accepted: it is parsed, and its canonical JSON is summed up section by section, so that a large file needs
little memory beside itself.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, cast

import msgspec
from msgspec import Struct

from backstay.protocol.export_file import CANONICAL, canonical_text

SCHEMA = "durable-workflow.v2.history-export"
VERSION = 1
SECTIONS: dict[str, type[Any]] = {
    **dict.fromkeys(("workflow", "payloads", "links", "redaction", "codec_schemas", "payload_manifest"), dict),
    **dict.fromkeys(
        ("history_events", "commands", "signals", "updates", "tasks", "activities", "timers", "failures"), list
    ),
}
"""The members that every bundle has."""


class BundleReport(Struct, frozen=True, kw_only=True):
    """The result of a check. `findings`: everything that is wrong, as (rule, sentence)."""

    status: str  # ok | failed
    findings: list[tuple[str, str]] = []
    workflow_id: str | None = None
    run_id: str | None = None
    events: int = 0
    history_complete: bool = False
    redacted: bool = False
    signed: bool = False
    signature_checked: bool = False
    key_id: str | None = None
    checksum: str | None = None


class NoBundle(ValueError):
    """The text is no export at all."""


class ExportBundle:
    """A parsed export whose long lists are still text."""

    def __init__(self, text: bytes | bytearray | memoryview) -> None:
        try:
            self._members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise NoBundle(f"it is not a JSON object: {error}") from None

    def close(self) -> None:
        """Let go of the text."""
        self._members = {}

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def get(self, name: str) -> Any:
        """A member as plain values."""
        return _plain(self._members[name]) if name in self._members else None

    def entries(self, name: str) -> Iterator[Any]:
        """The entries of a list, one by one."""
        try:
            listed = msgspec.json.decode(self._members[name], type=list[msgspec.Raw])
        except msgspec.MsgspecError:
            raise NoBundle(f"its member {name!r} is no list") from None
        for entry in listed:
            yield _plain(entry)

    def canonical(self) -> Iterator[bytes]:
        """The canonical JSON without `integrity`, in pieces."""
        before = b"{"
        for name in sorted(self._members):
            if name != "integrity":
                yield before + canonical_text(name) + b":"
                yield from _pieces(self._members[name])
                before = b","
        yield b"{}" if before == b"{" else b"}"


def _plain(raw: msgspec.Raw) -> Any:
    try:
        return json.loads(bytes(raw))
    except (ValueError, RecursionError) as error:
        raise NoBundle(f"a part of it cannot be read: {error}") from None


def _pieces(raw: msgspec.Raw) -> Iterator[bytes]:
    try:
        listed = msgspec.json.decode(raw, type=list[msgspec.Raw])
    except msgspec.MsgspecError:
        yield canonical_text(_plain(raw))
        return
    yield b"["
    for place, entry in enumerate(listed):
        yield (b"," if place else b"") + canonical_text(_plain(entry))
    yield b"]"


def check_bundle(bundle: ExportBundle, key: str | None = None) -> BundleReport:
    """Check the shape, the order of events, the checksum and, with `key`, the signature of an export."""
    findings: list[tuple[str, str]] = []
    if bundle.get("schema") != SCHEMA:
        findings.append(("bundle.schema_unexpected", f"its schema is {bundle.get('schema')!r}, not {SCHEMA!r}"))
    elif bundle.get("schema_version") != VERSION:
        version = bundle.get("schema_version")
        findings.append(("bundle.schema_version_unsupported", f"its version is {version!r}; known is {VERSION}"))
    for name, kind in SECTIONS.items():
        if name not in bundle:
            findings.append(("bundle.section_missing", f"it has no member {name!r}"))
        elif not _is(bundle, name, kind):
            findings.append(("bundle.section_invalid", f"its member {name!r} is not a {kind.__name__}"))
    workflow: dict[str, Any] = bundle.get("workflow") if _is(bundle, "workflow", dict) else {}
    count = _check_events(bundle, workflow, findings) if _is(bundle, "history_events", list) else 0
    if bundle.get("history_damage") is not None:
        findings.append(("bundle.history_damaged", str(bundle.get("history_damage")["message"])))
    integrity: Any = bundle.get("integrity")
    redaction: Any = bundle.get("redaction")
    found = _check_integrity(bundle, integrity, key, findings)
    return BundleReport(
        status="failed" if findings else "ok",
        findings=findings,
        workflow_id=workflow.get("instance_id"),
        run_id=workflow.get("run_id"),
        events=count,
        history_complete=bool(bundle.get("history_complete")),
        redacted=isinstance(redaction, dict) and bool(cast(dict[str, Any], redaction).get("applied")),
        signed=found.get("signature") is not None,
        signature_checked=key is not None and found.get("signature") is not None,
        key_id=found.get("key_id"),
        checksum=found.get("checksum"),
    )


def _is(bundle: ExportBundle, name: str, kind: type[Any]) -> bool:
    if name not in bundle:
        return False
    if kind is list:
        try:
            next(bundle.entries(name), None)
        except NoBundle:
            return False
        return True
    return isinstance(bundle.get(name), kind)


def _check_events(bundle: ExportBundle, workflow: dict[str, Any], findings: list[tuple[str, str]]) -> int:
    count = 0
    for count, event in enumerate(bundle.entries("history_events"), 1):
        if not isinstance(event, dict) or cast(dict[str, Any], event).get("sequence") != count:
            findings.append(("history.sequence_broken", f"event {count} is missing or not in its place"))
            break
    said = workflow.get("last_history_sequence")
    if not findings and said != count:
        findings.append(("workflow.last_history_sequence_wrong", f"it has {count} events, but its field says {said}"))
    return count


def _check_integrity(
    bundle: ExportBundle, integrity: Any, key: str | None, findings: list[tuple[str, str]]
) -> dict[str, Any]:
    if not isinstance(integrity, dict):
        findings.append(("integrity.missing", "it has no checksum"))
        return {}
    said = cast(dict[str, Any], integrity)
    if said.get("canonicalization") != CANONICAL or said.get("checksum_algorithm") != "sha256":
        findings.append(("integrity.unsupported", "its checksum is of an unknown kind"))
        return said
    checksum, signature = sha256(), hmac.new((key or "").encode(), digestmod=sha256)
    for piece in bundle.canonical():
        checksum.update(piece)
        signature.update(piece)
    if checksum.hexdigest() != said.get("checksum"):
        findings.append(
            ("integrity.checksum_mismatch", "its checksum does not match: it was changed since it was written")
        )
    if key is not None and said.get("signature") is None:
        findings.append(("integrity.signature_missing", "it is not signed"))
    elif key is not None and not hmac.compare_digest(signature.hexdigest(), str(said.get("signature"))):
        findings.append(("integrity.signature_mismatch", "its signature does not match: another key made it"))
    return said
