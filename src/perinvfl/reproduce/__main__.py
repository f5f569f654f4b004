"""`python -m perinvfl.reproduce FILE.toml`, and `python -m perinvfl.reproduce worlds`."""

import sys

from perinvfl.reproduce import command, worlds_command

if sys.argv[1:2] == ["worlds"]:
    sys.exit(worlds_command.main(sys.argv[2:]))
sys.exit(command.main())
