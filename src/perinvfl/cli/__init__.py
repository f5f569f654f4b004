"""The command line: `app` holds the commands, a further group of commands is a file of its own added there."""

from perinvfl.cli.app import call, main

__all__ = ["call", "main"]
