"""What a server asks of one site."""

import json
from dataclasses import dataclass, field
from typing import Any

NEVER = -1  # the step before the first


@dataclass(frozen=True)
class Assignment:
    """The model aside. A step is anything that changes a site's state: a round, or notes taken."""

    run: str  # names the run, the same after the server was killed and resumed it
    asked: dict[str, Any]  # the trial, as in the records
    client: int  # which client of the trial this site is
    clients: int  # N
    contexts: int  # K
    phase: int  # which phase of the program
    round: int  # t, within the phase; at an evaluation, the number of rounds done
    step: int  # what this assignment does to the site's state, counted over all phases
    used: int  # the last step of this site that the server used
    weight: float = 1.0  # N q_i for GroupDRO
    noise: tuple[float, float] | None = None  # multiplier and clip of differential privacy
    tell_risk: bool = True
    tell_facts: bool = True  # what was found in preparing, as numbers
    sources: dict[str, str] = field(default_factory=dict)  # own code that the trial names, by its content
    fitted: dict[str, Any] | None = None  # what a site does with its table's columns, where all sites fitted it
    plan: dict[str, Any] | None = None  # before a run: what of its columns a site is to sum up

    @property
    def trial(self) -> str:
        """Everything that stays the same from step to step, as one text."""
        return json.dumps([self.asked, self.client, self.contexts, self.sources, self.fitted], sort_keys=True)
