"""Servers at one database: requests between nodes, and questions that all nodes answer together."""
