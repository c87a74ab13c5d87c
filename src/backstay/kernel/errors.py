"""What every error that Backstay raises is, whichever part of it says so."""

from __future__ import annotations


class BackstayError(Exception):
    pass
