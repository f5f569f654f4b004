"""`python -m perinvfl.reproduce FILE.toml`, `... again TABLE` and `... worlds`."""

import sys

from perinvfl.reproduce import again_command, command, worlds_command

if sys.argv[1:2] == ["worlds"]:
    sys.exit(worlds_command.main(sys.argv[2:]))
if sys.argv[1:2] == ["again"]:
    sys.exit(again_command.main(sys.argv[2:]))
sys.exit(command.main())
