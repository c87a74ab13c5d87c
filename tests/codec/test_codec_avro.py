"""The bytes of the `avro` codec: published vectors, round trips, and what is refused."""

import math
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.codec import avro
from backstay.codec.avro import PayloadError

HEADER = "c301e2a33dff55802237"

VECTORS = [
    (None, "00", "wwHioz3/VYAiNwA="),
    (True, "0201", "wwHioz3/VYAiNwIB"),
    (False, "0200", "wwHioz3/VYAiNwIA"),
    (0, "0400", "wwHioz3/VYAiNwQA"),
    (1, "0402", "wwHioz3/VYAiNwQC"),
    (-1, "0401", "wwHioz3/VYAiNwQB"),
    (42, "0454", "wwHioz3/VYAiNwRU"),
    (300, "04d804", "wwHioz3/VYAiNwTYBA=="),
    (9223372036854775807, "04feffffffffffffffff01", "wwHioz3/VYAiNwT+//////////8B"),
    (-9223372036854775808, "04ffffffffffffffffff01", "wwHioz3/VYAiNwT///////////8B"),
    (1.0, "06000000000000f03f", "wwHioz3/VYAiNwYAAAAAAADwPw=="),
    (3.5, "060000000000000c40", "wwHioz3/VYAiNwYAAAAAAAAMQA=="),
    (-0.25, "06000000000000d0bf", "wwHioz3/VYAiNwYAAAAAAADQvw=="),
    ("", "0a00", "wwHioz3/VYAiNwoA"),
    ("hello", "0a0a68656c6c6f", "wwHioz3/VYAiNwoKaGVsbG8="),
    ("héllo ☃", "0a1468c3a96c6c6f20e29883", "wwHioz3/VYAiNwoUaMOpbGxvIOKYgw=="),
    (b"\x00\xff", "080400ff", "wwHioz3/VYAiNwgEAP8="),
    ([], "0c00", "wwHioz3/VYAiNwwA"),
    (["hello", 42], "0c040a0a68656c6c6f045400", "wwHioz3/VYAiNwwECgpoZWxsbwRUAA=="),
    (
        ["hello", True, None, 1.5, [1], {"k": "v"}],
        "0c0c0a0a68656c6c6f02010006000000000000f83f0c020402000e02026b0a02760000",
        "wwHioz3/VYAiNwwMCgpoZWxsbwIBAAYAAAAAAAD4PwwCBAIADgICawoCdgAA",
    ),
    ({}, "0e00", "wwHioz3/VYAiNw4A"),
    ({"a": 1}, "0e020261040200", "wwHioz3/VYAiNw4CAmEEAgA="),
    (
        {"greeting": "hello, world", "length": 12},
        "0e04106772656574696e670a1868656c6c6f2c20776f726c640c6c656e677468041800",
        "wwHioz3/VYAiNw4EEGdyZWV0aW5nChhoZWxsbywgd29ybGQMbGVuZ3RoBBgA",
    ),
    ({"b": 1, "a": 2}, "0e04026204020261040400", "wwHioz3/VYAiNw4EAmIEAgJhBAQA"),
    (
        [{"order_id": 42, "priority": "gold"}],
        "0c020e04106f726465725f69640454107072696f726974790a08676f6c640000",
        "wwHioz3/VYAiNwwCDgQQb3JkZXJfaWQEVBBwcmlvcml0eQoIZ29sZAAA",
    ),
]

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def framed(datum: str) -> bytes:
    return bytes.fromhex(HEADER + datum)


def typed(value: object) -> object:
    """The value with the type of every part, so that 1, 1.0 and True differ."""
    match value:
        case list():
            return [typed(item) for item in value]
        case dict():
            return {key: typed(item) for key, item in value.items()}
        case float():
            return float, value, math.copysign(1, value)
        case _:
            return type(value), value


def refusal(action, *args) -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        action(*args)
    return caught.value


def outcome(blob: bytes) -> str:
    try:
        avro.decode(blob)
    except PayloadError as error:
        return error.reason
    return "read"


@pytest.mark.contract("CODEC-03")
@pytest.mark.parametrize(("value", "datum", "text"), VECTORS)
def test_published_vectors_encode_and_decode_to_the_byte(value, datum, text):
    assert avro.encode(value).hex() == HEADER + datum
    assert avro.to_text(avro.encode(value)) == text
    assert typed(avro.decode(avro.from_text(text))) == typed(value)


@pytest.mark.contract("CODEC-03")
@given(PLAIN)
def test_every_plain_value_comes_back_with_its_types(value):
    assert typed(avro.decode(avro.encode(value))) == typed(value)
    assert avro.from_text(avro.to_text(avro.encode(value))) == avro.encode(value)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 511, 512, 8191, 8192, 70_000])
def test_sizes_around_the_edges_of_the_tables_come_back(size):
    value = {
        "text": "é" * size,
        "bytes": b"\x00" * size,
        "list": [size] * size,
        "map": {str(n): -n for n in range(size)},
    }
    value["k" * size] = None
    assert avro.decode(avro.encode(value)) == value


def test_a_tuple_comes_back_as_a_list():
    assert avro.decode(avro.encode((1, (2, ())))) == [1, [2, []]]


def test_the_order_of_a_map_is_kept():
    decoded: Any = avro.decode(avro.encode({"b": 1, "a": 2}))
    assert list(decoded) == ["b", "a"]


@pytest.mark.parametrize(
    ("datum", "value"),
    [
        ("0c03080402040400", [1, 2]),  # a negative count with the size of the block
        ("0c" + "020402" + "020404" + "020406" + "00", [1, 2, 3]),  # three blocks
        ("0c0104040202040400", [1, 2]),  # a negative count, then a positive one
        ("0e020261040201080262040400", {"a": 1, "b": 2}),
        ("0c0204028000", [1]),  # a terminator of two bytes
    ],
)
def test_blocks_of_any_shape_are_read(datum, value):
    assert avro.decode(framed(datum)) == value


MALFORMED = [
    ("empty", b""),
    ("half a header", framed("")[:7]),
    ("a header alone", framed("")),
    ("no magic", b"\xc3\x02" + framed("00")[2:]),
    ("plain JSON", b'{"hello": [1, 2, 3]}'),
    ("a byte after the value", framed("0000")),
    ("an unknown branch", framed("10")),
    ("an odd branch", framed("03")),
    ("a boolean of 2", framed("0202")),
    ("no boolean", framed("02")),
    ("no long", framed("04")),
    ("a long cut short", framed("0480")),
    ("a long of eleven bytes", framed("04" + "80" * 10 + "01")),
    ("a long of 65 bits", framed("04" + "ff" * 9 + "02")),
    ("a double cut short", framed("0600000000")),
    ("a NaN", framed("06000000000000f87f")),
    ("an infinity", framed("06000000000000f07f")),
    ("bytes cut short", framed("080400")),
    ("bytes of negative size", framed("0801")),
    ("text cut short", framed("0a0a6865")),
    ("text of negative size", framed("0a01")),
    ("text of 2**62 bytes", framed("0afeffffffffffffff7f61")),
    ("text that is not UTF-8", framed("0a02ff")),
    ("a surrogate in text", framed("0a06eda080")),
    ("an array without an end", framed("0c020402")),
    ("an array without a count", framed("0c")),
    ("an array of 2**62 items", framed("0cfeffffffffffffff7f" + "00" * 20)),
    ("a block of -2**63 items", framed("0cffffffffffffffffff01" + "02" + "00" * 20)),
    ("a block of negative size", framed("0c0101040200")),
    ("a map without an end", framed("0e0202610402")),
    ("a map with a key and no value", framed("0e020261")),
    ("a key of negative size", framed("0e0201610402")),
    ("a key that is not UTF-8", framed("0e0202ff040200")),
]


@pytest.mark.contract("CODEC-03")
@pytest.mark.parametrize("blob", [blob for _, blob in MALFORMED], ids=[name for name, _ in MALFORMED])
def test_a_malformed_frame_is_refused(blob):
    error = refusal(avro.decode, blob)
    assert error.reason == "invalid_payload_framing"
    assert str(error).startswith("invalid_payload_framing: ")


@given(PLAIN, st.data())
def test_a_blob_cut_anywhere_is_refused(value, data):
    blob = avro.encode(value)
    cut = data.draw(st.integers(0, len(blob) - 1))
    assert refusal(avro.decode, blob[:cut]).reason == "invalid_payload_framing"


@given(st.binary(max_size=60))
def test_noise_is_a_value_or_a_refusal_and_nothing_else(noise):
    assert outcome(framed("") + noise) in {"read", "invalid_payload_framing", "nesting_too_deep"}


def test_another_schema_is_named_as_such():
    blob = bytes.fromhex("c301" + "00" * 8 + "00")
    assert refusal(avro.decode, blob).reason == "unsupported_payload_schema"


@pytest.mark.parametrize(
    "text",
    ["wwHioz3_VYAiNwA=", "wwHioz3/VYAiNwA", "wwHioz3/VYAiNwA=\n", "wwHi oz3/VYAiNwA=", "é", "=", "wwHioz3/VYAiNwB="],
)
def test_base64_that_would_not_come_back_the_same_is_refused(text):
    assert refusal(avro.from_text, text).reason == "invalid_payload_framing"


@pytest.mark.contract("CODEC-05")
@pytest.mark.parametrize("codec", ["json", "Avro", "", None, 1])
def test_any_other_codec_is_an_error(codec):
    avro.expect_codec("avro")
    assert refusal(avro.expect_codec, codec).reason == "unsupported_payload_codec"


@pytest.mark.contract("CODEC-05")
def test_a_payload_of_another_codec_is_not_sniffed():
    assert refusal(avro.decode, b'["hello"]').reason == "invalid_payload_framing"


@pytest.mark.parametrize(
    ("value", "reason", "path"),
    [
        (2**63, "integer_overflow", "$"),
        ([{"items": [1, 2, -(2**63) - 1]}], "integer_overflow", "$[0].items[2]"),
        ({"a": [math.nan]}, "non_finite_float", "$.a[0]"),
        ((math.inf,), "non_finite_float", "$[0]"),
        ({"a": {1: "x"}}, "invalid_map_key", "$.a"),
        ({None: 1}, "invalid_map_key", "$"),
        ({"a b": [0, object()]}, "unsupported_value_type", "$['a b'][1]"),
        ([{"ok": 1}, {"x": "\ud800"}], "unsupported_value_type", "$[1].x"),
        ({"ok": [], "\udfff": 1}, "unsupported_value_type", "$['\\udfff']"),
    ],
)
def test_a_value_that_cannot_be_encoded_is_refused_with_its_path(value, reason, path):
    error = refusal(avro.encode, value)
    assert (error.reason, error.path) == (reason, path)
    assert path == "$" or path in str(error)


def test_a_huge_integer_is_refused_without_printing_it():
    assert "does not fit 64" in str(refusal(avro.encode, 10**10_000))


def nested(levels: int) -> object:
    value: object = 1
    for level in range(levels):
        value = [value] if level % 2 else {"k": value}
    return value


def test_five_hundred_levels_come_back_from_any_depth_of_the_stack():
    def deep(frames: int) -> object:
        return deep(frames - 1) if frames else avro.decode(avro.encode(nested(500)))

    assert deep(600) == nested(500)


def test_more_levels_are_refused_and_not_a_recursion_error():
    assert refusal(avro.encode, nested(501)).reason == "nesting_too_deep"
    assert refusal(avro.decode, framed("0c02" * 501 + "00" + "00" * 501)).reason == "nesting_too_deep"


def test_a_cycle_is_refused():
    cycle: list[object] = [0]
    cycle.append({"again": cycle})
    error = refusal(avro.encode, cycle)
    assert error.reason == "nesting_too_deep"
    assert error.path.startswith("$[1].again[1]")
    assert len(error.path) < 200


def test_the_table_of_keys_is_bounded():
    for _ in range(3):
        avro.encode({os.urandom(4).hex(): 1 for _ in range(3000)})
    from backstay.codec import writer

    assert len(writer._KEYS) <= 4096
