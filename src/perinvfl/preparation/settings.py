"""What is prepared before an algorithm trains: the `[contexts]` part of an experiment file."""

from dataclasses import dataclass
from typing import Any, Literal

from perinvfl.core import config
from perinvfl.core.hyper import hyper
from perinvfl.errors import UserError
from perinvfl.models.symmetry import Symmetry


@dataclass(frozen=True)
class ContextSettings:
    """The stage in front of an algorithm."""

    infer: Literal["given", "hard", "soft", "xrm"] = hyper(
        "given",
        "where contexts come from: the data (given), or a split of each client's samples by whether a "
        "reference model is wrong (hard), by EIIL's soft shares (soft), or by the errors of XRM's twin "
        "models (xrm); given, the default, trains no reference model",
    )
    use: Literal["balance", "discount", "judge"] = hyper(
        "balance",
        "what inferred contexts are used for: balance gives each the same weight in the loss; discount "
        "subtracts from the logits what the reference model already predicts; judge only scores held-out"
        " data by them; balance, the default, works with every invariant loss",
    )
    reference_rounds: int = hyper(
        40,
        "rounds of FedAvg for the reference model; few, so that it learns what is easy, which is the shortcut; "
        "40 was chosen on the coloured digits, and small tables need a larger step size with it",
        least=1,
    )
    reference_rate: float = hyper(
        1e-3,
        "server step size (Adam) of the reference model; together with its rounds it decides how much is learned; "
        "0.001 was chosen on the coloured digits, and small tables need about 0.03",
        above=0,
    )
    reference_cooling: bool = hyper(
        False,
        "let the reference model's step size fall to 0 over its rounds; gives steadier answers where data are few; "
        "without it, the default, the step size stays as it is",
        later=True,
    )
    hide_middle: float = hyper(
        0.0,
        "hide the middle of each image from the reference model, up to this radius in half sides; for "
        "shortcuts around the object, such as a background: recommended then discounts what the border says, whether "
        "it varies or not; 0 hides nothing",
        least=0,
        most=1.4,
        later=True,
    )
    align: Symmetry = hyper(
        "nothing",
        "estimate by which rotation or mirroring each client's images differ from the first client's, "
        'and undo it, so that all clients see images alike; "nothing" keeps images as they are',
        later=True,
    )
    every: int = hyper(
        0,
        "infer the contexts again from the global model every so many rounds, so that they follow what it still "
        "gets wrong; 0, the default, infers them once, from the reference model",
        least=0,
    )
    soft_steps: int = hyper(
        100,
        "gradient steps with which EIIL finds its soft split; too few leave samples between the two contexts; "
        "100 is a round number that was not searched for",
        least=1,
        most=10**6,
    )
    even_classes: bool = hyper(
        False,
        "subtract the log of each client's class shares from the logits, also the reference model's, so "
        "that a rare class counts as much as a common one; without it, the default, classes count by how "
        "often they occur",
        later=True,
    )

    def check(self, where: str) -> None:
        if self.infer == "soft" and (self.use != "balance" or self.every):
            raise UserError(f'{where}.infer = "soft" goes with use = "balance" and every = 0.')
        if self.hide_middle and self.every:
            raise UserError(f"{where}.every infers by the global model, which is shown all; leave out hide_middle.")
        if self.use == "judge" and self.every:
            raise UserError(f'{where}.every means nothing to use = "judge"; leave it out.')


# What only the user can know; `recommended` decides the rest.
KNOWN_BY_USERS = ("align", "hide_middle")


def read_contexts(mapping: Any, decides: bool = False) -> ContextSettings:
    """Settings as under `[contexts]`. What to do with inferred contexts is refused where nothing asks to infer them.

    decides: for an algorithm that decides them itself.
    """
    made = config.build(ContextSettings, mapping, "contexts")
    if decides:
        for key in mapping:
            if key not in KNOWN_BY_USERS:
                raise UserError(
                    f"contexts.{key}: recommended decides this itself; of [contexts] it takes "
                    f"{' and '.join(KNOWN_BY_USERS)} alone."
                )
        return made
    if made.align != "nothing" and made.infer not in ("hard", "xrm"):
        raise UserError('contexts.align goes with infer = "hard" or "xrm".')
    if mapping and "infer" not in mapping:
        raise UserError(
            f'contexts.{next(iter(mapping))} does nothing without contexts.infer = "hard", "soft" or "xrm".'
        )
    return made
