"""Tokens of pages: where the next page of one particular list begins. A token of another list is refused."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from zlib import crc32

from backstay.kernel.message import Refused


def list_token(about: str, position: str | int) -> str:
    """The token of a position. `about` names the list: the run, the order, every filter."""
    return urlsafe_b64encode(f"{_mark(about)}:{position}".encode()).decode("ascii")


def token_position(token: str, about: str, field: str = "next_page_token") -> str:
    """The position that a token of this list was made for."""
    try:
        text = urlsafe_b64decode(token.encode("ascii")).decode()
    except (Base64Error, ValueError):
        text = ""
    mark, colon, position = text.partition(":")
    if not colon or not position:
        raise Refused("invalid_page_token", "this page token was not given by this server", field=field)
    if mark != _mark(about):
        raise Refused(
            "invalid_page_token",
            "this page token belongs to another list: use it with the same run, order and filters that it was given for",
            field=field,
        )
    return position


def token_number(token: str, about: str, field: str = "next_page_token") -> int:
    """The same for a list whose positions are numbers."""
    position = token_position(token, about, field)
    if not (position.isascii() and position.isdigit()) or len(position) > 18:
        raise Refused("invalid_page_token", "this page token was not given by this server", field=field)
    return int(position)


def _mark(about: str) -> str:
    return f"{crc32(about.encode()):08x}"
