"""The blob read and written by an independent Avro library that knows only the published schema."""

import hashlib
import io
from typing import Any

import fastavro
import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form
from hypothesis import given
from test_codec_avro import PLAIN, VECTORS, typed

from backstay.codec import avro

SPACE = "durable_workflow.protocol"


def record(name: str, field: str, kind: object) -> dict:
    return {"type": "record", "name": name, "namespace": SPACE, "fields": [{"name": field, "type": kind}]}


BRANCHES = [
    ("BooleanValue", "boolean", "boolean"),
    ("LongValue", "long", "long"),
    ("DoubleValue", "double", "double"),
    ("BytesValue", "bytes", "bytes"),
    ("StringValue", "string", "string"),
    ("ArrayValue", "items", {"type": "array", "items": f"{SPACE}.Value"}),
    ("MapValue", "entries", {"type": "map", "values": f"{SPACE}.Value"}),
]
RAW = record("Value", "value", ["null", *(record(*branch) for branch in BRANCHES)])
SCHEMA = fastavro.parse_schema(RAW)
CANONICAL = to_parsing_canonical_form(RAW)
HEADER = b"\xc3\x01" + bytes.fromhex(fingerprint(CANONICAL, "CRC-64-AVRO"))


def wrapped(value: object) -> dict:
    """The value as a record of the schema."""
    match value:
        case None:
            return {"value": None}
        case bool():
            branch, content = 0, value
        case int():
            branch, content = 1, value
        case float():
            branch, content = 2, value
        case bytes():
            branch, content = 3, value
        case str():
            branch, content = 4, value
        case list():
            branch, content = 5, [wrapped(item) for item in value]
        case dict():
            branch, content = 6, {key: wrapped(item) for key, item in value.items()}
    name, field, _ = BRANCHES[branch]
    return {"value": (f"{SPACE}.{name}", {field: content})}


def unwrapped(read: dict) -> object:
    inner = read["value"]
    if inner is None:
        return None
    ((field, content),) = inner.items()
    if field == "items":
        return [unwrapped(item) for item in content]
    if field == "entries":
        return {key: unwrapped(item) for key, item in content.items()}
    return content


def foreign_encode(value: object) -> bytes:
    out = io.BytesIO(HEADER)
    out.seek(0, io.SEEK_END)
    fastavro.schemaless_writer(out, SCHEMA, wrapped(value))
    return out.getvalue()


def foreign_decode(blob: bytes) -> object:
    assert blob.startswith(HEADER)
    source = io.BytesIO(blob[len(HEADER) :])
    read: Any = fastavro.schemaless_reader(source, SCHEMA)
    value = unwrapped(read)
    assert not source.read()
    return value


def test_the_fingerprint_is_that_of_the_published_schema():
    digest = hashlib.sha256(CANONICAL.encode()).hexdigest()
    assert digest.startswith("da3c35f7e2f4bbb5")
    assert digest.endswith("5364fd8")
    assert avro.encode(None)[:10] == HEADER


@pytest.mark.contract("CODEC-04")
@pytest.mark.parametrize("value", [value for value, _, _ in VECTORS])
def test_a_plain_reader_with_the_schema_alone_reads_our_vectors(value):
    assert typed(foreign_decode(avro.encode(value))) == typed(value)


@pytest.mark.contract("CODEC-03", "CODEC-04")
@given(PLAIN)
def test_an_independent_library_reads_what_we_write(value):
    assert typed(foreign_decode(avro.encode(value))) == typed(value)


@pytest.mark.contract("CODEC-03")
@given(PLAIN)
def test_we_read_what_an_independent_library_writes(value):
    assert typed(avro.decode(foreign_encode(value))) == typed(value)
