"""Files of the project's folder that an installed package carries too: beside the source, or inside the wheel.

pyproject.toml says which (`force-include`).
"""

from pathlib import Path

PACKAGE = Path(__file__).parents[1]
CHECKOUT = PACKAGE.parents[1]  # where the package is used from the project's folder


def shipped(path: Path | str) -> Path:
    """Where a file or folder of the project lies, by its path in the project's folder.

    >>> shipped("experiments/demo.toml").name
    'demo.toml'
    """
    inside = PACKAGE / "shipped" / path
    return inside if inside.exists() else CHECKOUT / path


def published_places(place: Path) -> tuple[Path, ...]:
    """Where the records of a published table may lie: in a folder of that name, in results/ here, or shipped.

    >>> published_places(Path("."))  # a folder of one's own, not the name of a table
    (PosixPath('.'),)
    """
    if place.is_absolute() or not place.parts or ".." in place.parts:
        return (place,)
    return place, Path("results") / place, shipped(Path("results") / place)
