"""Avro into plain values. A blob is untrusted: it is exactly one whole value or it is refused.

Every item costs at least a byte of the blob, so a count that promises more than there is ends with the blob. On the
hot path, therefore one loop with its own stack.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from struct import Struct
from struct import error as struct_error
from typing import Any, Final, NoReturn

from backstay.codec.errors import PayloadError
from backstay.codec.schema import (
    ARRAY,
    BOOLEAN,
    BYTES,
    DOUBLE,
    HEADER,
    LONG,
    MAGIC,
    MAP,
    MAX_DEPTH,
    NULL,
    STRING,
    misframed,
)


def decode(blob: bytes) -> object:
    """The plain value in `blob`, which must be exactly one whole value."""
    if blob[:10] != HEADER:
        _refuse_header(blob)
    try:
        short = _short(blob, len(blob))
        if short is not _LONGER:
            return short
        pos = 10
        values: list[Any] = []
        names: list[str] | None = None
        left = 1
        outer: list[tuple[list[Any], list[str] | None, int]] = []
        while True:
            if names is not None:
                size, pos = _size(blob, pos) if blob[pos] & 0x81 else (blob[pos] >> 1, pos + 1)
                names.append(blob[pos : pos + size].decode())
                pos += size
            branch = blob[pos]
            pos += 1
            if branch == LONG and blob[pos] < 128:
                values.append(_SHORT[blob[pos]])
                pos += 1
            elif branch == STRING:
                size, pos = _size(blob, pos) if blob[pos] & 0x81 else (blob[pos] >> 1, pos + 1)
                values.append(blob[pos : pos + size].decode())
                pos += size
            elif branch == ARRAY or branch == MAP:  # noqa: SIM109 - the hot path
                count, pos = _count(blob, pos) if blob[pos] & 0x81 else (blob[pos] >> 1, pos + 1)
                if count:
                    if len(outer) == MAX_DEPTH:
                        raise PayloadError("nesting_too_deep", f"more than {MAX_DEPTH} levels at byte {pos}")
                    outer.append((values, names, left))
                    values = []
                    names = [] if branch == MAP else None
                    left = count
                    continue
                values.append({} if branch == MAP else [])
            elif branch in _OTHERS:
                value, pos = _OTHERS[branch](blob, pos)
                values.append(value)
            else:
                raise misframed(f"unknown branch {branch} at byte {pos - 1}")
            left -= 1
            while not left:
                if not outer:
                    if pos != len(blob):
                        _refuse_end(blob, pos)
                    return values[0]
                if blob[pos]:
                    left, pos = _count(blob, pos)
                    if left:
                        break
                else:
                    pos += 1
                done = values if names is None else dict(zip(names, values))  # noqa: B905 - equal by construction
                values, names, left = outer.pop()
                values.append(done)
                left -= 1
    except IndexError:
        raise misframed("the blob is truncated") from None
    except struct_error:
        raise misframed("the blob is truncated inside a double") from None
    except UnicodeDecodeError as error:
        raise misframed(f"text is not UTF-8 ({error.reason})") from None


def _short(blob: bytes, end: int) -> object:
    """The value of a blob that is one number or short text, as most results are, or a list of some, as most arguments are.
    `_LONGER`: it is another one, or is broken."""
    if end < 12:
        return _LONGER
    branch, first = blob[10], blob[11]
    if branch == ARRAY:
        if first not in _FEW:
            return _LONGER
        values: list[Any] = []
        pos = 12
        for _ in _FEW[first]:
            branch = blob[pos]
            if branch == LONG:
                number, pos = (_SHORT[blob[pos + 1]], pos + 2) if blob[pos + 1] < 128 else _unzigzag(blob, pos + 1)
                values.append(number)
            elif branch == STRING and not blob[pos + 1] & 0x81:
                text = pos + 2
                pos = text + (blob[pos + 1] >> 1)
                values.append(blob[text:pos].decode())
            else:
                return _LONGER
        return values if pos + 1 == end and not blob[pos] else _LONGER
    if branch == STRING:
        return blob[12:].decode() if first == (end - 12) << 1 and first < 128 else _LONGER
    if branch == LONG:
        number, pos = _unzigzag(blob, 11)
        return number if pos == end else _LONGER
    return _LONGER


# Each reads what follows its branch byte. A slice past the end is noticed by the next read, or at the end of the blob.


def _bytes(blob: bytes, pos: int) -> tuple[bytes, int]:
    size, pos = _size(blob, pos)
    return blob[pos : pos + size], pos + size


def _double(blob: bytes, pos: int) -> tuple[float, int]:
    (double,) = _READ_DOUBLE(blob, pos)
    if not isfinite(double):
        raise misframed(f"a double that is {double} at byte {pos}")
    return double, pos + 8


def _boolean(blob: bytes, pos: int) -> tuple[bool, int]:
    if blob[pos] > 1:
        raise misframed(f"a boolean of {blob[pos]} at byte {pos}")
    return blob[pos] == 1, pos + 1


def _null(_: bytes, pos: int) -> tuple[None, int]:
    return None, pos


def _count(blob: bytes, pos: int) -> tuple[int, int]:
    """Items of the next block, 0 at the end. A negative count is followed by the size of the block, for skipping."""
    count, pos = _unzigzag(blob, pos)
    if count < 0:
        _, pos = _size(blob, pos)
    return abs(count), pos


def _size(blob: bytes, pos: int) -> tuple[int, int]:
    size, end = _unzigzag(blob, pos)
    if size < 0:
        raise misframed(f"a negative size at byte {pos}")
    return size, end


def _unzigzag(blob: bytes, pos: int) -> tuple[int, int]:
    byte = blob[pos]
    if byte < 128:
        return byte >> 1 ^ -(byte & 1), pos + 1
    number = byte & 127
    for shift in range(7, 70, 7):
        pos += 1
        byte = blob[pos]
        number |= (byte & 127) << shift
        if byte < 128:
            break
    if byte > 127 or number > 0xFFFFFFFFFFFFFFFF:
        raise misframed(f"a number of more than 64 bits at byte {pos}")
    return number >> 1 ^ -(number & 1), pos + 1


def _refuse_end(blob: bytes, end: int) -> NoReturn:
    raise misframed("the blob is truncated" if end > len(blob) else f"{len(blob) - end} bytes after the value")


def _refuse_header(blob: bytes) -> NoReturn:
    if len(blob) < len(HEADER) or not blob.startswith(MAGIC):
        raise misframed("no Avro single-object header; encode with the `avro` codec")
    problem = (
        f"schema fingerprint {blob[2:10].hex()}; only {HEADER[2:].hex()} (durable_workflow.protocol.Value) is known"
    )
    raise PayloadError("unsupported_payload_schema", problem)


_READ_DOUBLE: Final = Struct("<d").unpack_from
_LONGER: Final = object()
_FEW: Final = {count << 1: range(count) for count in range(1, 64)}
_SHORT: Final = [byte >> 1 ^ -(byte & 1) for byte in range(128)]
_OTHERS: Final[dict[int, Callable[[bytes, int], tuple[Any, int]]]] = {
    NULL: _null,
    BOOLEAN: _boolean,
    LONG: _unzigzag,
    DOUBLE: _double,
    BYTES: _bytes,
}
