"""The command that re-creates a published table."""
