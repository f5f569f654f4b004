"""`python -m perinvfl.train FILE.toml`: what `perinvfl.runs.train` does, where only torch is installed."""

import sys

from perinvfl.runs.train import main

if __name__ == "__main__":
    sys.exit(main())
