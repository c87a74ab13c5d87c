"""Stored views of runs, the proofs and counts that go by them, and the metrics of an engine."""
