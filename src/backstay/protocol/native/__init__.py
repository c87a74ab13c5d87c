"""Backstay's own wire protocol: what its clients and workers and its server of the same release say to each other."""
