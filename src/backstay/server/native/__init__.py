"""The server's side of Backstay's own wire protocol: calls of its clients, and the links of its workers."""
