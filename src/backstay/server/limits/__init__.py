"""Limits of task queues and of storage: admission, shares between servers, retention."""
