"""Workflows to be read, never run. A comment `#: rule` marks each line that must be found."""
