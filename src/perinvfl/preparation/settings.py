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
        "contexts as the data give them, split by whether a reference model is wrong, by EIIL's shares, or by whether "
        "XRM's twin models are wrong about samples they have not learned",
    )
    use: Literal["balance", "discount", "judge"] = hyper(
        "balance",
        "run the losses over the inferred contexts, each counting alike; or take what the reference model's answer "
        "tells about the label off the logits; or only judge held-out data by them",
    )
    reference_rounds: int = hyper(40, "rounds of FedAvg that make the reference model", least=1)
    reference_rate: float = hyper(1e-3, "step size of the reference model's server (Adam)", above=0)
    reference_cooling: bool = hyper(
        False, "its step size falls to nothing over these rounds, which steadies it on little data", later=True
    )
    hide_middle: float = hyper(
        0.0,
        "radius of the middle of an image that the reference model is not shown, in halves of a side, where the "
        "shortcut is known to lie around the object; 0: it is shown all",
        least=0,
        most=1.4,
        later=True,
    )
    align: Symmetry = hyper(
        "nothing",
        "ways to see an image among which each client takes the one in which a model of the first client, trained with "
        "the shortcut discounted, fits its images best; then all see alike, where clients differ by such a style",
        later=True,
    )
    every: int = hyper(0, "rounds after which contexts are inferred again from the global model; 0: once", least=0)
    soft_steps: int = hyper(100, "steps of EIIL's ascent", least=1, most=10**6)
    even_classes: bool = hyper(
        False,
        "take what the client's class shares tell about the label off the logits, the reference model's too: a rare "
        "class then counts as much as a common one",
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
