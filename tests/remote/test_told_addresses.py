"""To which addresses a worker sends its token: the one that it was given, and those that a server tells, if they are as safe."""

from __future__ import annotations

import pytest

from backstay.sdk.remote.server_links import is_as_safe


@pytest.mark.parametrize(
    ("given", "told", "safe"),
    [
        ("http://10.0.0.1:8080", "http://10.0.0.2:8080", True),
        ("http://proxy.internal", "https://node-2.internal", True),
        ("https://proxy.internal", "https://node-2.internal", True),
        ("https://proxy.internal", "http://node-2.internal", False),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8081", True),
        ("http://localhost:8080", "http://[::1]:8081", True),
        ("http://localhost:8080", "http://10.0.0.2:8080", True),
        ("http://proxy.internal", "http://127.0.0.1:8080", False),
        ("https://proxy.internal", "https://localhost:8080", False),
        ("http://10.0.0.1:8080", "http://[::1]:8080", False),
        ("http://10.0.0.1:8080", "http://[::1", False),
    ],
)
def test_a_token_goes_where_it_is_as_safe_as_where_the_user_sent_it(given: str, told: str, safe: bool) -> None:
    assert is_as_safe(told, given) is safe
