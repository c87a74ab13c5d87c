"""Registries: entries by namespace and name, in memory for reading and in the store for the next start."""
