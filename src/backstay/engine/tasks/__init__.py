"""Tasks: matching of ready tasks and workers, leases, and delivery."""
