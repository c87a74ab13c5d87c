"""The link between our own worker and our own server, simulated: see docs/explanation/simulator.md."""
