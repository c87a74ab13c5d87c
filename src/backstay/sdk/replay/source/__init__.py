"""Reads the source of a definition: its fingerprint, its change ids, and whether it may run as a workflow.

Nothing here runs the definition, and nothing here imports the rest of the SDK: primitives are passed in as objects.
Importing this package is cheap; the parser is loaded by the first call.
"""

from backstay.sdk.replay.source.check import Finding, Severity, check
from backstay.sdk.replay.source.fingerprint import (
    change_ids,
    definition_fingerprint,
    predicate_fingerprint,
    waited_signals,
)

__all__ = [
    "Finding",
    "Severity",
    "change_ids",
    "check",
    "definition_fingerprint",
    "predicate_fingerprint",
    "waited_signals",
]
