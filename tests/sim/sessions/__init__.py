"""Worker sessions at several nodes of one database."""
