"""The operator's side of the server: overview, health, lists, bulk operations, audit, the live feed."""
