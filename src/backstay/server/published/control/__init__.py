"""The control plane: routes for clients and operators."""
