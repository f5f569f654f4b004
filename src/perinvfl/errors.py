"""The one exception a user is meant to see: a sentence that names the key or file and says what would be right."""


class UserError(Exception):
    """Bad input or a bad file. The command line prints the sentence and exits with code 2, without a traceback."""


class Hindered(UserError):
    """What was asked is right, and something else is in the way: a full disk, or another process at the same work."""
