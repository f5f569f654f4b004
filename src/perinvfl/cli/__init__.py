"""The command line: `app` names the commands, each of which is a file (or a group of commands in one) beside it.

A command imports what it needs when it runs. Importing torch takes seconds, and neither `--help` nor a command that
only reads records has a use for it.
"""

from perinvfl.cli.app import call, main

__all__ = ["call", "main"]
