"""`python -m perinvfl.reproduce`."""

import sys

from perinvfl.reproduce.command import main

sys.exit(main())
