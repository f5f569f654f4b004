"""Batches of trials on many machines, on Ray; the only room that knows it. `connection` and `calls` import it."""
