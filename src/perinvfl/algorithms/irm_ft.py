"""IRM-FT, the paper's second ablation (Table 5): distributed IRM, then plain fine-tuning at each client."""

from dataclasses import dataclass
from typing import ClassVar

from perinvfl.algorithms.irm import IRM
from perinvfl.algorithms.personal import FineTuned


@dataclass(frozen=True)
class IRMFT(FineTuned, IRM):
    """ν by distributed IRM to the end, then gradient steps on each client's own risk."""

    title: ClassVar[str] = "IRM-FT"
    paper: ClassVar[str] = "Tang, Guo & Zhang 2022, Table 5"
