"""Progress that stops a run at a round."""

from perinvfl.runs.progress import Exchange, Progress
from perinvfl.runs.trial import Trial


class StopAt(Progress):
    """As Ctrl-C does."""

    def __init__(self, round: int) -> None:
        self.stop = round

    def round(
        self, trials: list[Trial], rounds_done: int, risk: float | None, exchange: Exchange | None = None
    ) -> None:
        if rounds_done == self.stop:
            raise KeyboardInterrupt
