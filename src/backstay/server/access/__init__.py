"""Access: authentication of callers, their roles, and hidden payloads."""
