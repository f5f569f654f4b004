"""How long a server waits for sites, and when it gives up."""

import time
from dataclasses import dataclass

from perinvfl.errors import UserError
from perinvfl.runs.progress import Progress


@dataclass
class Patience:
    seconds: float
    progress: Progress
    ends: float = 0.0
    tries: int = 0

    def begin(self) -> "Patience":
        self.ends, self.tries = time.monotonic() + self.seconds, 0
        return self

    def for_sites(self, names: list[str], again: bool = False) -> None:
        """Wait a moment for them, longer each time the same was asked again; give up when patience is at its end."""
        if time.monotonic() >= self.ends:
            raise UserError(
                f"After {self.seconds:g} s there was still no answer from {', '.join(names)}; start them with "
                "`perinvfl federation join`, or raise federation.patience."
            )
        self.progress.waiting(names)
        time.sleep(min(0.2 * 2**self.tries, 10.0))
        self.tries += again
