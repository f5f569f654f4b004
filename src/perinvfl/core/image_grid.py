"""The coarse grid through which images are looked at: how many cells it has, and what they are called."""

GRID = 7  # cells along a side; cells are numbered row by row, from 0


def cell_name(cell: int) -> str:
    """
    >>> cell_name(44)
    'row 7, column 3'
    """
    return f"row {cell // GRID + 1}, column {cell % GRID + 1}"
