"""Data that only the sites of a federation hold: an experiment file says what they are like, not where they are."""

from dataclasses import dataclass
from typing import NoReturn

from perinvfl.errors import UserError
from perinvfl.federation import Task
from perinvfl.hyper import check_bounds, hyper


@dataclass(frozen=True)
class SitesSettings:
    clients: int = hyper(2, "number of sites", symbol="N", least=1)
    task: Task = hyper("binary", "what y is: binary, multiclass or regression")
    outputs: int = hyper(1, "classes of a multiclass task, else 1", least=1)
    spectrum: tuple[str, ...] = hyper((), "names of the test cases averaged in tables; none: all that sites have")

    def check(self, where: str) -> None:
        check_bounds(self, where)
        if (self.task == "multiclass") != (self.outputs > 1):
            right = "at least 2 for a multiclass task" if self.task == "multiclass" else f"1 for a {self.task} task"
            raise UserError(f"{where}.outputs = {self.outputs}: must be {right}.")


def refuse(settings: SitesSettings, seed: int) -> NoReturn:
    raise UserError('data.benchmark = "sites": these data are at the sites; `perinvfl federation run` trains there.')
