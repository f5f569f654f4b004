"""Searches that learn from their own trials, with Optuna; the only room that knows it, and `study` imports it."""
