"""Processes that share limits, over a database that is slow, fails, and writes late what it said it had not written."""
