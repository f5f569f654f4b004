"""`python -m perinvfl.train FILE.toml`: what `perinvfl.runs.train` does, where only torch is installed."""

import sys

from perinvfl.core.importing import importing


def main(arguments: list[str] | None = None) -> int:
    with importing():
        from perinvfl.runs.train import main as command
    return command(arguments)


if __name__ == "__main__":
    sys.exit(main())
