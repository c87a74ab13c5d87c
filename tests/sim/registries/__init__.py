"""A world of nodes that register things, on bad days."""
