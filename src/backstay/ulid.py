"""The alphabet of ULIDs, which both ends make: the engine for runs, a client for its requests."""

from __future__ import annotations

CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

PAIRS = [a + b for a in CROCKFORD for b in CROCKFORD]
"""Two characters for each number of ten bits: an id of 130 bits takes thirteen look-ups instead of 26."""
