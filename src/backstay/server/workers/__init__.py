"""Workers of the server: their types, heartbeats and sessions, and the queries that they answer."""
