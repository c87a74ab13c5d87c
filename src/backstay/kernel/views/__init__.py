"""Views: what people and programs want to know of a run. Pure functions of its state and history, never stored."""
