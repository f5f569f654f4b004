"""`python -m perinvfl` is the command line."""

from perinvfl.cli import main

main()
