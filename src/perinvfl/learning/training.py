"""How a run is carried out, whatever the algorithm: the `[training]` part of an experiment file."""

from dataclasses import dataclass
from typing import Literal

from perinvfl.core.hyper import hyper
from perinvfl.models import Precision


@dataclass(frozen=True)
class Training:
    """How a run is carried out, whatever the algorithm."""

    rounds: int = hyper(100, "communication rounds", symbol="T", least=1)
    batch_size: int = hyper(0, "samples in a batch, drawn with replacement; 0 is all of a client's data", least=0)
    fraction: float = hyper(1.0, "share of the clients that take part in a round", above=0, most=1)
    weights: Literal["uniform", "samples"] = hyper("uniform", "weight of a client in the mean (the paper's is uniform)")
    evaluate_every: int = hyper(10, "rounds between evaluations; the last round is always evaluated", least=1)
    executor: Literal["auto", "vmap", "loop"] = hyper("auto", "all clients as one program, or one after another")
    device: Literal["auto", "cpu", "cuda"] = hyper("auto", "where to train")
    precision: Precision = hyper("float32", "arithmetic of the matrix products")
    compile: bool = hyper(
        False, "compile the local steps (loop executor, needs a C++ compiler): faster on small batches"
    )
    at_rest: Literal["memory", "disk"] = hyper("memory", "where states of clients that sit out are kept")

    def evaluates_after(self, round: int) -> bool:
        """Whether an evaluation is due when this many rounds are done."""
        return round % self.evaluate_every == 0 or round == self.rounds
