"""`python -m perinvfl.reproduce`."""

import sys

from perinvfl.reproduce.stages import main

sys.exit(main())
