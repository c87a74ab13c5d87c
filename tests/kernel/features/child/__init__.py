"""Children, from both sides."""
