"""Data seen through the lens that clients noted: what `recommended` leaves out is left out of all that models see."""

from torch import Tensor

from perinvfl.data.federation import Federation
from perinvfl.models.lens import through
from perinvfl.preparation.phases import Notes

LENS = "lens"  # the name of the note


def in_lens(federation: Federation, lens: Tensor | None) -> Federation:
    """The same federation, seen through a lens."""
    if lens is None:
        return federation
    return federation.with_inputs(lambda x: through(x, lens, federation.shape), lens=lens)


def lens_noted(notes: Notes) -> Tensor | None:
    """The lens that was noted; None where data are seen as they are."""
    if LENS not in notes:
        return None
    lens = notes[LENS][0]
    plain = bool((lens[0] == 1).all()) and not bool(lens[1:].any())  # images in which nothing was found
    return None if plain else lens
