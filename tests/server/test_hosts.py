"""A server that asks nobody for a token answers to names that it knows, and gives nobody a token."""

from __future__ import annotations

from typing import Any

import pytest

from backstay.server.access.auth import Authenticator
from backstay.server.http.errors import HttpError
from backstay.server.settings import Settings, load

from .hostile import attacked
from .kit import serving

REBOUND = {"Host": "evil.example:8080", "Origin": "http://evil.example:8080", "Sec-Fetch-Site": "same-origin"}


def test_a_page_whose_name_leads_here_is_refused(tmp_path: Any) -> None:
    """The browser believes that the page and this server are one site, and says so."""
    with attacked(tmp_path, auth="none") as server:
        assert server.call("GET", "/api/workflows").status_code == 200
        for method, path, body in (
            ("GET", "/api/workflows", None),
            ("POST", "/api/workflows", {"workflow_type": "order"}),
            ("POST", "/api/tokens", {"role": "admin"}),
            ("GET", "/api/live?topic=runs", None),
            ("GET", "/metrics", None),
        ):
            answer = server.call(method, path, body, headers=REBOUND)
            assert (answer.status_code, answer.json()["reason"]) == (403, "foreign_host"), path


async def test_no_token_is_made_while_callers_need_none() -> None:
    async with serving(auth="none") as api:
        made = await api.control("POST", "/tokens", {"role": "admin"})
        assert (made.status_code, made.json()["reason"]) == (409, "tokens_not_given")
        rotated = await api.control("POST", "/tokens/some/rotate", {})
        assert (rotated.status_code, rotated.json()["reason"]) == (409, "tokens_not_given")


@pytest.mark.parametrize(
    ("listening", "host", "answered"),
    [
        ("127.0.0.1", "127.0.0.1:8080", True),
        ("127.0.0.1", "LOCALHOST", True),
        ("::1", "[::1]:8080", True),
        ("127.0.0.1", "10.0.0.7:8080", False),
        ("127.0.0.1", "evil.example", False),
        ("127.0.0.1", "localhost.evil.example", False),
        ("127.0.0.1", "", False),
        ("127.0.0.1", "backstay.internal:8080", True),
        ("0.0.0.0", "10.0.0.7:8080", True),
        ("0.0.0.0", "[2001:db8::7]:8080", True),
        ("0.0.0.0", "backstay.internal", True),
        ("0.0.0.0", "evil.example:8080", False),
        ("0.0.0.0", "10.0.0.7.evil.example", False),
        ("0.0.0.0", "", False),
    ],
)
def test_names_that_are_answered_to(listening: str, host: str, answered: bool) -> None:
    settings = Settings(auth="none", host=listening, allowed_hosts=["Backstay.internal"])
    authenticator: Any = Authenticator(settings, None, None)  # pyright: ignore[reportArgumentType]
    if answered:
        assert authenticator.caller({"host": host}).method == "none"
    else:
        with pytest.raises(HttpError, match="host names that it knows"):
            authenticator.caller({"host": host})


def test_names_are_separated_by_commas() -> None:
    assert load({}, {"DW_ALLOWED_HOSTS": "a.example, b.example,"}).allowed_hosts == ["a.example", "b.example"]
