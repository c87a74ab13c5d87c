"""Deliberate bugs in how processes share limits. Each must break the law on some day."""

from __future__ import annotations

from ..mutation import Mutant

PLACE = "backstay.server.limits.budget_shares:BudgetShares"

MUTANTS = [
    Mutant(
        "share freed before deposition",
        f"{PLACE}._without_the_gone",
        "min(amount, counts[scope, node])",
        "0",
    ),
    Mutant(
        "who has just begun is taken for gone",
        f"{PLACE}._without_the_gone",
        "node in there or node == self._me",
        "node in self._nodes() or node == self._me",
    ),
    Mutant(
        "what is leased is given back",
        f"{PLACE}._give",
        "spare = max(0, share.amount - used)",
        "spare = share.amount",
    ),
    Mutant(
        "taken without the guard",
        f"{PLACE}._write",
        "share.unsure = unsure and not done",
        "share.unsure, done = (False, True)",
    ),
    Mutant(
        "used until it is written that it was given",
        f"{PLACE}._settle",
        "share.amount -= given",
        "pass",
    ),
    Mutant(
        "what may have been given is used",
        f"{PLACE}._learn",
        "min(held, share.amount) if share.unsure else held",
        "held",
    ),
    Mutant(
        "who was deposed gives what it held",
        f"{PLACE}._look",
        "if self._me != self._me_now(): return",
        "",
    ),
    Mutant(
        "shares are kept after a deposition",
        f"{PLACE}.look",
        "self._shares = {scope: _fresh(share) for scope, share in self._shares.items() if share.wanted}",
        "",
        also=(f"{PLACE}._learn", "share.amount = amount", "share.amount = max(amount, share.amount)"),
    ),
    Mutant(
        "the last minute is still there",
        "backstay.server.limits.budget_shares:BudgetShare.begin",
        "self.minute, self.amount, self.owed, self.unsure = (minute, 0, 0, False)",
        "self.minute = minute",
        also=(f"{PLACE}._learn", "share.amount = amount", "share.amount = max(amount, share.amount)"),
    ),
    Mutant(
        "nothing is handed on",
        f"{PLACE}._give",
        "min(spare, max(owed, idle))",
        "0",
    ),
    Mutant(
        "what is kept for the next scope is given away",
        f"{PLACE}._give",
        "needed = any((other.wanted and scope in other.having for other in self._shares.values()))",
        "needed = False",
    ),
    Mutant(
        "the gone keep what they held",
        f"{PLACE}._without_the_gone",
        "not strange or (self._present is None and now - self._counted < IDLE // 2)",
        "True",
    ),
]

CAUGHT = {"what may have been given is used": 58, "the last minute is still there": 5}
"""The days that broke first; the others break on the first one or soon after."""
