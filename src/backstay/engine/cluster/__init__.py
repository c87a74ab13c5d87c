"""Several processes at one database: shards, links to other nodes, takeover. Only `node.py` and the composition roots import it."""
