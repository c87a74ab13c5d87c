"""Causes: why something needs attention, collected in one place for every surface that tells of it."""
