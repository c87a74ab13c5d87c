"""The HTTP routes of the published protocol: the control plane, and workers that poll for single tasks."""
