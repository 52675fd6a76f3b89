"""Mutation testing on top of cosmic-ray: `scripts/mutants`."""
