"""How a node proves, with every request to another node, that both are nodes of one database.

    X-Backstay-Proof: CALLER.SERIES.NUMBER.TIME.DIGEST.MAC

CALLER is the id of the node that calls. SERIES and NUMBER are never the same in two of its requests to a node: it counts from the
moment SERIES on. TIME is when the request was made, in microseconds. DIGEST is the SHA-256 of the body. MAC is the keyed BLAKE2b of
all this, the node that is called, the method and the target; its key is the secret of the database.

So a proof is for one request to one node. A program that has seen it, on the way or at the address of a node that is gone, can do
nothing with it. It hides nothing, though: where strangers see what nodes say to each other, nodes advertise `https` addresses.
"""

from __future__ import annotations

from hashlib import blake2b, sha256
from hmac import compare_digest
from typing import NamedTuple

from backstay.kernel.values import SECOND, Micros

HEADER = "X-Backstay-Proof"

WINDOW: Micros = 60 * SECOND
"""A proof is valid for so long around its time. Nodes go by the clock of their database, so they differ by milliseconds."""


class NodeProof(NamedTuple):
    caller: int
    series: Micros
    number: int
    at: Micros
    digest: str


def digest_of(body: bytes) -> str:
    return sha256(body).hexdigest()


def written(proof: NodeProof, secret: str, to: str, method: str, target: str) -> str:
    """The proof as it is sent, with a request to the node `to`. `target`: path and query as sent."""
    text = "%d.%d.%d.%d.%s" % proof  # noqa: UP031 - the quickest way, and it is done for every request
    return f"{text}.{_mac(secret, to, method, target, text)}"


def is_made_with(secret: str, sent: str, to: str, method: str, target: str) -> bool:
    """Whether a node that knows the secret has made this proof, for this request to this node."""
    text, _, mac = sent.rpartition(".")
    return mac.isascii() and compare_digest(_mac(secret, to, method, target, text), mac)


def read(sent: str) -> NodeProof:
    """The contents of a proof that was made with the secret."""
    caller, series, number, at, digest, _ = sent.split(".")
    return NodeProof(int(caller), int(series), int(number), int(at), digest)


def _mac(secret: str, to: str, method: str, target: str, text: str) -> str:
    given = f"{to}\n{method}\n{target}\n{text}".encode("utf-8", "surrogatepass")
    return blake2b(given, digest_size=16, key=secret.encode(), person=b"backstay node").hexdigest()
