"""HTTP: connections, parsing, routing, and the checks that every request passes."""
