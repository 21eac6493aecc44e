"""Faults of every kind, planted on purpose, and what became of the run: `make faults`, `make soak`."""
