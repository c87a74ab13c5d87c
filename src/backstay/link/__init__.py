"""HTTP between our own processes, from the side that calls: clients and workers to a server, and one node to another."""
