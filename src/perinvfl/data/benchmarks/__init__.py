"""Data sets that are made here."""
