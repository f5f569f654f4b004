"""Drives algorithms for many clients and trials at once."""
