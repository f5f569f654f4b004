"""A TOML file in, records out."""
