"""Programs whose activities have something to say over the wire: beats at the wrong moment, and results that are too large."""

from __future__ import annotations

from backstay import activity, activity_info

from ..programs import ACTIVITIES, BUILDS, HELPERS, LINKED, Grammar, Statement, ledger

PAYLOAD = 16 << 10
"""Bytes of a payload here, instead of 2 MB."""

BODY = 64 << 10
"""Bytes of a request here, instead of 8 MB."""

TOGETHER = 8 << 10
"""Bytes of reports that go together here, instead of 1 MB."""


@activity(type="far", max_crashes="forever", queue="far", retries="forever", backoff=1)
def far(token: str) -> str:
    ledger.act(token)
    return f"{token}!"


@activity(type="far_once", queue="far", at_most_once=True)
def far_once(token: str) -> str:
    ledger.begin(activity_info().idempotency_key, 1)
    return far.fn(token)


KNOWN = (*BUILDS["B"], *ACTIVITIES, *HELPERS, *LINKED, far, far_once)


class LinkGrammar(Grammar):
    def leaf(self) -> Statement:
        pick = self._random
        if pick.random() < 0.7:
            return super().leaf()
        return ["act", "chatty", self.token(), pick.choice([1, 2, 5])]

    def statement(self, depth: int, *, child: bool = False) -> Statement:
        pick = self._random
        if pick.random() < 0.75:
            return super().statement(depth, child=child)
        match pick.choice(self._swarm.likes(["chatty", "chatty", "dozy", "bulk", "good"])):
            case "chatty":
                return ["act", "chatty", self.token(), pick.choice([1, 2, 5])]
            case "dozy":
                return ["risk", "dozy", self.token(), pick.choice([1, 3, 6, 200])]
            case "bulk":
                return ["bulk", self.token(), pick.choice([PAYLOAD + 1, PAYLOAD + 100, BODY, 2 * BODY])]
            case _:
                return ["act", "good", self.token()]
