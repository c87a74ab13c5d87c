"""The wire and only the wire: the requests of clients and workers to an engine, and its replies.

A request names its reply (`Request[R]`), so one method, `Transport.call`, carries everything with its type.
"""
