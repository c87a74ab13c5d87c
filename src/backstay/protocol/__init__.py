"""The wire and only the wire: what a client or worker may ask of an engine, and what it answers.

A request names its reply (`Request[R]`), so one method, `Transport.call`, carries everything with its type.
"""
