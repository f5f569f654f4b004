"""Phases in front of an algorithm: the reference model, inferred contexts, alignment."""
