"""The routes of Waterline: its page at every address under `/waterline`, and its files. They need no credential, since they
hold no data: the page signs in, and calls the API.
"""

from __future__ import annotations

from functools import cache

from backstay.server.access.auth import EVERY
from backstay.server.http.encoding import GZIP, accepts_gzip
from backstay.server.http.errors import HttpError
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.router import Route
from backstay.server.server import Server
from backstay.waterline import POLICY, Asset, Assets, load_assets

_assets = cache(load_assets)

_POLICY = (b"content-security-policy", POLICY.encode())
_KEPT = (b"cache-control", b"public, max-age=31536000, immutable")
_ASKED_AGAIN = (b"cache-control", b"no-cache")
_VARIES = (b"vary", b"accept-encoding")


async def _home(server: Server, request: HttpRequest) -> HttpResponse:
    return HttpResponse({}, 302, b"", "text/plain", headers=((b"location", b"/waterline/"),))


async def _page(server: Server, request: HttpRequest) -> HttpResponse:
    return _sent(request, _assets().shell, _ASKED_AGAIN)


async def _file(server: Server, request: HttpRequest) -> HttpResponse:
    assets: Assets = _assets()
    found = assets.named.get(request.params["file"])
    if found is None or request.params["version"] != assets.version:
        # A page of an older release requests a file of its release: it has to be reloaded.
        raise HttpError(404, "file_not_found", f"this release of Waterline has no file {request.path}; reload the page")
    return _sent(request, found, _KEPT)


def _sent(request: HttpRequest, asset: Asset, caching: tuple[bytes, bytes]) -> HttpResponse:
    headers = (_POLICY, caching, _VARIES)
    if accepts_gzip(request.headers):
        return HttpResponse({}, 200, asset.compressed, asset.type, headers=(*headers, GZIP))
    return HttpResponse({}, 200, asset.content, asset.type, headers=headers)


PAGES = [
    Route(method, path, handler, "open", EVERY, answers=answers)
    for method in ("GET", "HEAD")
    for path, handler, answers in (
        ("/", _home, "text/html"),
        ("/waterline", _page, "text/html"),
        ("/waterline/{path*}", _page, "text/html"),
        ("/waterline/a/{version}/{file*}", _file, "text/plain"),
    )
]
"""Not part of the API, so no document lists them."""
