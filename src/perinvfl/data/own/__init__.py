"""Data that users bring."""
