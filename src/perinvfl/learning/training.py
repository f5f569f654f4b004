"""How a run is carried out, whatever the algorithm: the `[training]` part of an experiment file."""

from dataclasses import dataclass
from typing import Literal

from perinvfl.core.hyper import hyper
from perinvfl.models import Precision


@dataclass(frozen=True)
class Training:
    """How a run is carried out, whatever the algorithm."""

    rounds: int = hyper(
        100,
        "number of rounds, in each of which clients train and the server combines their models; more learn "
        "more and cost time; 100 is enough for most small data",
        symbol="T",
        least=1,
    )
    batch_size: int = hyper(
        0,
        "number of samples in each step of a client, drawn with replacement; fewer make a step faster and "
        "noisier; 0 uses all of a client's samples",
        least=0,
    )
    fraction: float = hyper(
        1.0,
        "share of the clients that take part in a round, drawn again in each; less saves time where there are "
        "many; 1 takes all of them",
        above=0,
        most=1,
    )
    weights: Literal["uniform", "samples"] = hyper(
        "uniform",
        "how much a client counts in the server's mean: uniform, the paper's, counts all alike, so that small "
        "clients are served too; samples counts each by its number of samples",
    )
    evaluate_every: int = hyper(
        10,
        "number of rounds from one evaluation to the next; more frequent ones show more of the course and "
        "cost time; the last round is always evaluated",
        least=1,
    )
    evaluate_clients: int = hyper(
        0,
        "number of clients that evaluations look at, the same in every run, which saves time where there are "
        "many; 0 looks at all",
        least=0,
        later=True,
    )
    executor: Literal["auto", "vmap", "loop"] = hyper(
        "auto",
        "how clients are computed: all at once (vmap) or one after another (loop), with results that agree to "
        "rounding; auto takes the one that is usually faster",
    )
    device: Literal["auto", "cpu", "cuda"] = hyper(
        "auto",
        "device to train on: cpu or cuda; small models are often as fast on a CPU; auto takes a GPU if there is one",
    )
    precision: Precision = hyper(
        "float32",
        "arithmetic of matrix products: tf32 and bfloat16 are faster on GPUs and less exact; float32, the "
        "default, is exact to seven digits",
    )
    compile: bool | Literal["auto"] = hyper(
        False,
        "compile the steps of clients with torch.compile, which is faster on small batches and agrees to rounding; "
        "true needs executor loop and a C++ compiler; auto compiles on a CPU where it pays: batches of at most 256 "
        "samples, and 10 000 steps of a client or more; false does not compile; large perceptrons in float32 are not "
        "compiled on processors of AMD with AVX-512, where their steps are faster as they are",
    )
    at_rest: Literal["memory", "disk"] = hyper(
        "memory",
        "where to keep the states of clients that do not take part in a round: memory, the default, is "
        "faster; disk saves memory where there are many clients",
    )

    def evaluates_after(self, round: int) -> bool:
        """Whether an evaluation is due when this many rounds are done."""
        return round % self.evaluate_every == 0 or round == self.rounds
