"""The control plane: what clients and operators ask of workflows, and of the house."""
