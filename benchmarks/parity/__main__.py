"""This project's side of the comparison; see the package."""

import sys
from pathlib import Path

import benchmarks.parity
from benchmarks.parity import compare, ours, plain


def main(arguments: list[str]) -> None:
    if len(arguments) < 2 or arguments[0] not in ("export", "ours", "plain", "compare"):
        sys.exit(benchmarks.parity.__doc__)
    folder = Path(arguments[1])
    if arguments[0] == "export":
        ours.export(folder)
    elif arguments[0] == "ours":
        ours.run(folder, arguments[2:])
    elif arguments[0] == "plain":
        plain.run(folder)
    else:
        compare.compare(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
