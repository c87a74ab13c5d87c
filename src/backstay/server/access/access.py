"""The credentials of callers: tokens, sessions of browsers and signatures, with the memory of each."""

from __future__ import annotations

from backstay.engine.core.world import World
from backstay.server.access.auth import Authenticator
from backstay.server.access.browser import BrowserSessions, WrongTokens
from backstay.server.access.signatures import Signatures
from backstay.server.access.tokens import Tokens
from backstay.server.access.used_signatures import UsedSignatures
from backstay.server.settings import Settings
from backstay.store import Store


class AccessControl:
    """`signatures` is None where callers show tokens instead."""

    def __init__(self, settings: Settings, store: Store, world: World) -> None:
        self.tokens = Tokens(store)
        self.browser_sessions = BrowserSessions(
            store, world.now, settings.session_lifetime_seconds, tls=settings.tls_certificate is not None
        )
        self.wrong_tokens = WrongTokens(world.now)
        self.signatures = Signatures(settings.signature_key or "", world.now) if settings.auth == "signature" else None
        self.used_signatures = UsedSignatures(world, store)
        self.authenticator = Authenticator(settings, self.tokens, self.browser_sessions)

    async def forget(self) -> None:
        """Remove expired entries."""
        await self.browser_sessions.forget()
        await self.used_signatures.forget()
