"""How a table or photographs are read: the same on one machine and at a site."""

from dataclasses import dataclass
from typing import Literal

from perinvfl.core.config import NumbersByName
from perinvfl.core.hyper import hyper

Missing = Literal["impute", "refuse"]


@dataclass(frozen=True)
class Reading:
    """What the columns are, what is missing, and how large photographs become."""

    context: str = hyper(
        "context",
        "column that names the context of each row, such as its year; what changes between contexts may be a "
        'shortcut; "" if there is only one',
    )
    features: tuple[str, ...] = hyper(
        (), "columns to predict from, if not all should be used; empty takes all columns that have no other role"
    )
    ignore: tuple[str, ...] = hyper(
        (), "columns not to use, such as an identifier or what is known only after the label; empty ignores none"
    )
    categories: tuple[str, ...] = hyper(
        (),
        "columns whose numbers are codes rather than amounts; each code gets a 0/1 column of its own, so that "
        "no order is assumed; columns of text are always treated so; empty means that no numbers are codes",
        later=True,
    )
    missing: Missing = hyper(
        "impute",
        "what to do with missing values: impute, the default, fills in the training median and adds a 0/1 "
        "column that says so, so that no row is lost; refuse stops with an error",
        later=True,
    )
    missing_values: NumbersByName = hyper(
        NumbersByName(),
        'numbers that mean "missing" in a column, such as {chol = 0}, so that they are not taken for '
        "measurements; empty takes all numbers as they are",
        later=True,
    )
    image_size: int = hyper(
        64,
        "side in pixels of the square to which photographs are resized, since all must have one size; smaller "
        "trains faster and shows less",
        least=1,
        most=4096,
    )
    colour: bool = hyper(
        True, "read photographs in colour; where colour may be a shortcut, false reads them in shades of grey"
    )
