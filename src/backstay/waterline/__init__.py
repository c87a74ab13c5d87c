"""Waterline: the operator's page. Its files, as the server sends them.

The page is plain HTML, CSS and ES modules without a build step. All files share one version, a hash of them all: their addresses
name it, so that a browser keeps them for good and never mixes two releases. Nothing of ours is imported here, and the page knows
the server only through its public API.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from hashlib import blake2b
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; worker-src 'self';"
    " img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'"
)
"""What the page may do, as its Content-Security-Policy says it: no markup from strings, nothing from another host."""


SHEETS = ("tokens", "base", "parts", "overview", "runs", "run", "run-tabs", "house")
"""The stylesheets, in this order sent as one: together they are smaller than each by itself."""


class Asset(NamedTuple):
    content: bytes
    compressed: bytes
    type: str


class Assets(NamedTuple):
    version: str
    shell: Asset  # the page itself
    named: dict[str, Asset]  # everything else, by its path


def load_assets() -> Assets:
    found = {name: _sent(name, content) for name, content in sorted(_files(files("backstay.waterline") / "static", ""))}
    found["all.css"] = b"".join(found.pop(f"css/{name}.css") for name in SHEETS)
    digest = blake2b(digest_size=8)
    for name, content in found.items():
        digest.update(name.encode() + b"\0" + content)
    version = digest.hexdigest()
    # Modules import each other by relative addresses, which keep the version. The shell names those of the frame, so that a
    # browser asks for them at once instead of one after the other.
    preloads = "\n".join(
        f'    <link rel="modulepreload" href="/waterline/a/{version}/{name}">' for name in found if _is_preloaded(name)
    )
    shell = found.pop("index.html").decode().replace("<!-- modules -->", preloads.strip()).replace("VERSION", version)
    named = {name: _asset(name, content) for name, content in found.items()}
    return Assets(version, _asset("index.html", shell.encode()), named)


def _is_preloaded(name: str) -> bool:
    return name.startswith("js/") and name.count("/") == 1


_COMMENTS = re.compile(r"^[ \t]*(?:/\*(?:(?!\*/).)*\*/[ \t]*$|//[^\n]*$)\n?", re.MULTILINE | re.DOTALL)
_TAILS = re.compile(r"(?<=[;,{}()\]>]) (?://[^\"'`\n]*|/\*(?:(?!\*/).)*\*/)$", re.MULTILINE)
"""Comments after code. Those with a quotation mark stay: what looks like one may be in a text."""
_TYPES = re.compile(r"/\*\* @(?:(?!\*/).)*\*/ ?")
_INDENTS = re.compile(r"^[ \t]+|\n(?=\n)", re.MULTILINE)


def _sent(name: str, content: bytes) -> bytes:
    """A module or stylesheet without its comments, types and indentation: a third of it, which no browser needs."""
    if not name.endswith((".js", ".css")):
        return content
    return _INDENTS.sub("", _TYPES.sub("", _TAILS.sub("", _COMMENTS.sub("", content.decode())))).encode()


def _asset(name: str, content: bytes) -> Asset:
    return Asset(content, gzip.compress(content, 9, mtime=0), TYPES[name.rpartition(".")[2]])


def _files(folder: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    for one in folder.iterdir():
        name = f"{path}{one.name}"
        if one.is_dir():
            yield from _files(one, f"{name}/")
        elif one.name.rpartition(".")[2] in TYPES:
            yield name, one.read_bytes()
