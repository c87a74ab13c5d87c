"""The core of an engine: it decides messages, commits decisions in batches, and applies the effects of a commit."""
