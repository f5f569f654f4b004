"""`python -m perinvfl`, and the command `perinvfl`, are the command line."""

import os

from perinvfl.core.importing import importing


def main() -> None:
    try:
        with importing():
            from perinvfl.cli import main as command
    except KeyboardInterrupt:  # before anything began
        os._exit(130)
    command()


if __name__ == "__main__":
    main()
