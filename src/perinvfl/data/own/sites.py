"""Data that only the sites of a federation hold: an experiment file says what they are like, not where they are."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from perinvfl.core.hyper import check_bounds, hyper
from perinvfl.data.federation import Federation, Task
from perinvfl.data.own.division import Division, divide
from perinvfl.data.own.files import FileSettings, file_federation, read_rows
from perinvfl.data.own.fitted import Fitted
from perinvfl.data.own.reading import Reading
from perinvfl.data.own.rows import Rows
from perinvfl.errors import UserError


@dataclass(frozen=True)
class SitesSettings(Division, Reading):
    """What is the same at every site. The columns and the division of rows are for tables and folders of photographs;
    arrays bring their own tests."""

    clients: int = hyper(
        2,
        "number of sites that take part, each with a model of its own; must be that of the deployment; the "
        "default is two",
        symbol="N",
        least=1,
        most=10**5,
    )
    task: Task = hyper(
        "binary",
        "what the label is, which the server cannot see for itself: binary (yes or no), multiclass (one of "
        "several) or regression (a number)",
    )
    outputs: int = hyper(
        1,
        "number of classes of a multiclass task, which is the number of the model's outputs; 1 for the others",
        least=1,
    )
    spectrum: tuple[str, ...] = hyper(
        (),
        "names of the test contexts over which tables average, where sites have more of them; empty takes all "
        "that sites have",
    )

    label: str = hyper("label", "column of each site's table to predict; must have the same name at all sites")
    client: str = hyper(
        "", 'column that names the site, where its table has one, so that it is not learned from; "" if it has none'
    )
    classes: tuple[str | int, ...] = hyper(
        (),
        "names of the classes, in order; name all of them, since a site may not have a row of each; the "
        "server cannot look at the data; needed for a multiclass task",
    )

    def check(self, where: str) -> None:
        check_bounds(self, where)
        super().check(where)
        if self.leave_one_context_out:
            raise UserError(f"{where}.leave_one_context_out works on one machine only; name test_contexts instead.")
        if (self.task == "multiclass") != (self.outputs > 1):
            right = "at least 2 for a multiclass task" if self.task == "multiclass" else f"1 for a {self.task} task"
            raise UserError(f"{where}.outputs = {self.outputs}: must be {right}.")


def training_rows(settings: SitesSettings, path: Path, seed: int) -> Rows | None:
    """The rows of a site's own table that train; None of photographs and other pictures."""
    own = _own_settings(settings, path)
    rows = read_rows(own)
    return rows.take(divide(rows, own, seed)[0]) if rows.x.ndim == 2 else None


def _own_settings(settings: SitesSettings, path: Path) -> FileSettings:
    shared = {field.name for field in dataclasses.fields(FileSettings)} & {f.name for f in dataclasses.fields(settings)}
    return FileSettings(path=str(path), **{name: getattr(settings, name) for name in shared})


def site_federation(settings: SitesSettings, path: Path, seed: int, fitted: Fitted | None = None) -> Federation:
    """A site's own table or photographs, read as on one machine: a federation of one client.

    fitted: what all sites do with the columns of their tables.
    """
    own = _own_settings(settings, path)
    rows = read_rows(own)
    if settings.mean and rows.x.ndim == 2 and (any(rows.levels) or bool(rows.x.isnan().any())):
        raise UserError(
            f"{path} has missing values or categories, which data.mean and data.scale do not cover; leave the two out, "
            "and the sites sum up what they need."
        )
    federation = file_federation(own, seed, fitted)
    if federation.clients != 1:
        names = ", ".join(federation.client_names)
        raise UserError(f"{path} holds {federation.clients} clients ({names}); a site's file holds its own rows alone.")
    if federation.outputs != settings.outputs:
        raise UserError(
            f"{path} has {federation.outputs} outputs and data.outputs = {settings.outputs}; name data.classes, "
            "so that every site has the same."
        )
    return federation


def refuse(settings: SitesSettings, seed: int) -> NoReturn:
    raise UserError('data.benchmark = "sites": these data are at the sites; `perinvfl federation run` trains there.')
