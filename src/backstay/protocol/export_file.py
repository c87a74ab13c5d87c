"""The file of an export: its sections are written one by one while the history is read, and never held in memory.

Every list is a section on disk. Every value is redacted when it is added, and its payloads are noted for the manifest
under their final path. At the end the sections are joined in the order of their names, which is the canonical JSON; a
checksum over it follows as the last member of the file. So the checksum covers the file without that member, byte for
byte.
"""

from __future__ import annotations

import hmac
import json
from array import array
from collections.abc import Generator, Iterator, Mapping
from hashlib import blake2b, sha256
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import IO, Any, Self

from msgspec import Struct

from backstay.codec.schema import FINGERPRINT, MAGIC, SCHEMA_JSON
from backstay.kernel.values import CODEC
from backstay.protocol.redaction import Redactor, leaves, redacted

FRAMING = "single-object-v1"
CANONICAL = "json-recursive-ksort-v1"
PART = 64 << 10
IN_MEMORY = 64 << 10  # bytes of a section that need no file
STEP = 200  # entries that are written at a stretch


class Exporting(Struct, frozen=True, kw_only=True):
    """How exports are written: redaction and signing."""

    signing_key: str | None = None
    key_id: str | None = None
    redactor: Redactor | None = None
    policy: str | None = None  # the name of the redactor


AS_IT_IS = Exporting()


def spooled(size: int) -> IO[bytes]:
    """A file that is on disk only if it grows beyond a size. No other code reads it."""
    return SpooledTemporaryFile(size)


def canonical_text(value: Any) -> bytes:
    """The canonical JSON of a value: keys sorted, compact, not escaped."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


class ExportSection:
    """A member of the file: a list that grows, or one value."""

    def __init__(self, file: ExportFile, path: str) -> None:
        self._file = file
        self._path = path
        self._into: IO[bytes] = spooled(IN_MEMORY)
        self.count = 0

    def put(self, item: Any) -> None:
        """Put one more entry into the list."""
        self._file.pass_on(item, f"{self._path}[{self.count}]")
        self._into.write(b"," if self.count else b"[")
        self._into.write(canonical_text(item))
        self.count += 1

    def put_raw(self, text: bytes) -> None:
        """The same for an entry that is text already and holds nothing to redact."""
        self._into.write(b"," if self.count else b"[")
        self._into.write(text)
        self.count += 1

    def end(self) -> None:
        self._into.write(b"]" if self.count else b"[]")

    def set(self, value: Any) -> None:
        """Make it one value instead of a list."""
        if isinstance(value, dict | list):
            self._file.pass_on(value, self._path)
        self._into.write(canonical_text(value))

    def read(self) -> Iterator[bytes]:
        self._into.seek(0)
        while part := self._into.read(PART):
            yield part

    def close(self) -> None:
        self._into.close()


class ExportFile:
    """`about`: the run, as a redactor gets it."""

    def __init__(self, how: Exporting, about: Mapping[str, Any]) -> None:
        self._how = how
        self._about = dict(about)
        self._sections: dict[str, ExportSection] = {}
        self._open_lists: list[ExportSection] = []
        # By digest of a payload and whether it was changed: its places, as numbers of `_paths`.
        self._places: dict[tuple[bytes, bool], array[int]] = {}
        self._paths: IO[bytes] = spooled(IN_MEMORY)  # of payloads, a line each
        self._offsets = array("Q")
        self._asked = ExportSection(self, "redaction.paths")
        self._made: IO[bytes] = spooled(1 << 20)
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove everything from the disk."""
        self._forget()
        self._made.close()

    # -- writing

    def section(self, name: str, path: str | None = None) -> ExportSection:
        """A new list. `path`: where it stands, if that is inside of another member."""
        section = self._sections[name] = ExportSection(self, path or name)
        self._open_lists.append(section)
        return section

    def set(self, name: str, value: Any) -> None:
        """A member that is no long list."""
        section = self._sections[name] = ExportSection(self, name)
        section.set(value)

    def pass_on(self, value: Any, path: str) -> None:
        """Redact a value that is about to be written at this path, and note where its payloads are."""
        redactor = self._how.redactor
        for leaf in list(leaves(value, path)):
            text: Any = leaf.holder[leaf.key]
            changed = False
            if redactor is not None:
                leaf.holder[leaf.key] = redacted(leaf, redactor, self._about)
                changed = leaf.holder[leaf.key] != text
                self._asked.put_raw(canonical_text(leaf.path))
            if leaf.is_payload:
                digest = blake2b(text.encode(), digest_size=16).digest()
                places = self._places.get((digest, changed))
                if places is None:
                    places = self._places[digest, changed] = array("L")
                places.append(len(self._offsets))
                self._offsets.append(self._paths.tell())
                self._paths.write(leaf.path.encode() + b"\n")

    # -- the end

    def finish(self) -> Generator[None]:
        """Join the sections. It is done in steps: other work may be done after each."""
        self._asked.end()
        for section in self._open_lists:
            section.end()
        self.set(
            "codec_schemas",
            {
                CODEC: {
                    "framing": FRAMING,
                    "magic": MAGIC.hex(),
                    "writer_schema_fingerprint": FINGERPRINT,
                    "writer_schema": SCHEMA_JSON,
                }
            },
        )
        manifest = ExportSection(self, "")
        for number, ((_, changed), places) in enumerate(self._places.items()):
            manifest.put_raw(canonical_text(_entry([self._path(place) for place in places], changed)))
            if number % STEP == 0:
                yield
        manifest.end()
        how = self._how
        key = how.signing_key
        checksum, signature = sha256(), hmac.new((key or "").encode(), digestmod=sha256)
        written = 0
        for piece in self._canonical(manifest):
            self._made.write(piece)
            checksum.update(piece)
            signature.update(piece)
            written += len(piece)
            if written > STEP * PART // 10:
                written = 0
                yield
        checksum.update(b"}")
        signature.update(b"}")
        integrity = {
            "canonicalization": CANONICAL,
            "checksum_algorithm": "sha256",
            "checksum": checksum.hexdigest(),
            "signature_algorithm": None if key is None else "hmac-sha256",
            "signature": None if key is None else signature.hexdigest(),
            "key_id": None if key is None else how.key_id,
        }
        self._made.write(b',"integrity":' + canonical_text(integrity) + b"}")
        self.size = self._made.tell()
        manifest.close()
        self._forget()

    def pieces(self) -> Iterator[bytes]:
        """The finished file, part by part."""
        self._made.seek(0)
        while part := self._made.read(PART):
            yield part

    def _canonical(self, manifest: ExportSection) -> Iterator[bytes]:
        """The canonical JSON without its last brace."""
        how = self._how
        members: dict[str, Iterator[bytes]] = {
            name: section.read() for name, section in self._sections.items() if "." not in name
        }
        members["payload_manifest"] = _inside({"entries": manifest.read(), "version": iter([b"2"])})
        members["redaction"] = _inside(
            {
                "applied": iter([canonical_text(how.redactor is not None)]),
                "paths": self._asked.read(),
                "policy": iter([canonical_text(how.policy)]),
            }
        )
        for name in sorted({name.partition(".")[0] for name in self._sections if "." in name}):
            inner = {
                key.partition(".")[2]: part.read() for key, part in self._sections.items() if key.startswith(f"{name}.")
            }
            members[name] = _inside(inner)
        before = b"{"
        for name in sorted(members):
            yield before + canonical_text(name) + b":"
            yield from members[name]
            before = b","

    def _path(self, place: int) -> str:
        self._paths.seek(self._offsets[place])
        return self._paths.readline().decode().rstrip("\n")

    def _forget(self) -> None:
        for section in (*self._sections.values(), self._asked):
            section.close()
        self._sections.clear()
        self._places.clear()
        self._paths.close()


def _inside(members: Mapping[str, Iterator[bytes]]) -> Iterator[bytes]:
    before = b"{"
    for name in sorted(members):
        yield before + canonical_text(name) + b":"
        yield from members[name]
        before = b","
    yield b"}"


def _entry(paths: list[str], changed: bool) -> dict[str, Any]:
    """One entry a payload, with every place where it stands: an event, its point of the timeline, the section it made."""
    return {
        "path": paths[0],
        "paths": paths,
        "codec": CODEC,
        "encoding": "base64-avro-single-object",
        "avro_framing": FRAMING,
        "writer_schema": SCHEMA_JSON,
        "writer_schema_fingerprint": FINGERPRINT,
        "available": not changed,
        "redacted": changed,
        "diagnostic": "payload_redacted" if changed else None,
    }
