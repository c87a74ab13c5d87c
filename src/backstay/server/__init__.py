"""The HTTP server: worker plane and control plane over one engine. Alone knows HTTP."""
