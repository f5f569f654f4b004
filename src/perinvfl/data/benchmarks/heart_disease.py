"""920 patients of four hospitals, and whether they have a heart disease (UCI, 1989): real tables with real gaps.

Clients are hospitals. Two questions are asked: how well a hospital's model does for further patients of its own, and
how well all models do for the patients of a hospital that took no part. Hospitals differ in who comes to them (36 % of
the patients have the disease in Budapest, 93 % in Zurich and Basel), in what they measure (half of all values of
`slope`, `ca` and `thal` are missing), and in how they write down what they did not measure: as a gap, or as a
cholesterol of 0.

Missing values and categories are treated as in a user's own table, fitted on the training rows of the hospitals that
take part. A. Janosi, W. Steinbrunn, M. Pfisterer, R. Detrano. Heart Disease. UCI Machine Learning Repository, 1989.
"""

import dataclasses
import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from perinvfl.core.config import NumbersByName
from perinvfl.core.hyper import check_bounds, hyper
from perinvfl.data.benchmarks.sources import EMBEDDED
from perinvfl.data.constant import constant_scores
from perinvfl.data.encoding import encode
from perinvfl.data.federation import Federation, Split
from perinvfl.data.own import readers
from perinvfl.data.own.files import SAME, Division, exclude, federation_of
from perinvfl.data.own.fitting import recode
from perinvfl.data.own.rows import Columns, Rows, decide
from perinvfl.data.own.stand_ins import mark_missing
from perinvfl.errors import UserError

LeftOut = Literal["", "cleveland", "hungarian", "switzerland", "va", "each"]
HOSPITALS: tuple[LeftOut, ...] = ("cleveland", "hungarian", "switzerland", "va")
CATEGORIES = ("cp", "restecg", "slope", "thal")
NEVER_ZERO = ("chol", "trestbps")  # in a living patient
OWN = "same hospital"  # the name of the test within hospitals
FILE = "heart_disease.csv"
SHA256 = "1c315c6cbba5bba94446f7dfc5107f90c6294d2786bbe9c8084bed02b829ebae"


@dataclass(frozen=True)
class HeartSettings:
    leave_out: LeftOut = hyper(
        "",
        "hospital to leave out of training and to test on, which shows how models do at a new hospital; each "
        "makes one run without each of the four; empty leaves none out",
    )
    test_share: float = hyper(
        0.2,
        "share of each hospital's patients kept for testing, which shows how well a model serves its "
        "hospital; 0.2 keeps every fifth",
        least=0,
        most=0.9,
    )
    holdout: float = hyper(
        0.1,
        "share of the training samples that is kept out of training, so that settings can be chosen by them; "
        "0 keeps none out",
        least=0,
        most=0.9,
    )
    zeros: Literal["kept", "missing"] = hyper(
        "kept",
        "how to read a cholesterol or blood pressure of 0, which no patient can have: kept, the default, "
        "takes it as a number, as in the file; missing takes it as a missing value",
    )
    ignore: tuple[str, ...] = hyper((), "columns not to use, such as one that may be a shortcut; empty uses all")

    @property
    def clients(self) -> int:
        return len(HOSPITALS) - bool(self.leave_out)

    @property
    def fold(self) -> str:
        """The hospital that a run leaves out."""
        return "" if self.leave_out == "each" else self.leave_out

    def folds(self) -> "list[HeartSettings]":
        """One for each hospital to leave out; itself where not each is."""
        if self.leave_out != "each":
            return [self]
        return [dataclasses.replace(self, leave_out=hospital) for hospital in HOSPITALS]

    def check(self, where: str) -> None:
        check_bounds(self, where)
        Division(test_share=self.test_share, holdout=self.holdout).check(where)
        if not self.test_share and not self.leave_out:
            raise UserError(f"{where}.test_share = 0 leaves nothing to test on; name a hospital in {where}.leave_out.")


def heart_federation(settings: HeartSettings, seed: int) -> Federation:
    settings.check("heart_disease")
    if settings.leave_out == "each":
        raise UserError('data.leave_out = "each" makes one run for each hospital; name one to get its data.')
    rows = _patients(settings.ignore, settings.zeros == "missing")
    trained = exclude(rows, [settings.leave_out] if settings.leave_out else [])
    trained = dataclasses.replace(trained, excluded=0)  # they test
    division = Division(test_share=settings.test_share, holdout=settings.holdout)
    federation = federation_of(trained, division, seed, name="heart_disease")
    tests = {OWN: federation.tests[SAME]} if settings.test_share else {}
    if settings.leave_out:
        left_out = rows.take(rows.client == rows.clients.index(settings.leave_out))
        tests = {settings.leave_out: _seen_by_all(left_out, federation), **tests}
    constant = constant_scores(federation.task, federation.train, tests)
    return dataclasses.replace(
        federation, tests=tests, spectrum=(next(iter(tests)),), notes={**federation.notes, "constant": constant}
    )


def patients_table() -> bytes:
    """The embedded table, as CSV."""
    path = EMBEDDED / FILE
    content = path.read_bytes() if path.exists() else b""
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise UserError(f"{path} is {'damaged' if content else 'missing'}: reinstall perinvfl to restore it.")
    return content


@lru_cache(maxsize=4)
def _patients(ignore: tuple[str, ...], zeros_missing: bool) -> Rows:
    patients_table()  # refuses a damaged one
    categories = tuple(name for name in CATEGORIES if name not in ignore)
    columns = Columns("disease", "hospital", "", ignore=ignore, categories=categories)
    found = readers.read(EMBEDDED / FILE, columns, image_size=1, colour=False)
    if zeros_missing:
        found = mark_missing(found, NumbersByName({name: (0.0,) for name in NEVER_ZERO if name not in ignore}))
    return decide(found, "binary", label="disease")[0]


def _seen_by_all(rows: Rows, federation: Federation) -> Split:
    """Rows of another hospital, as every client's model sees them: [N, M, ...] that share their memory."""
    schema, clients = federation.schema, federation.clients
    encoded = encode(recode(rows, schema.encodings), schema.encodings).double()
    mean, scale = (torch.tensor(part, dtype=torch.float64) for part in (schema.mean, schema.scale))

    def to_all(values: Any) -> Tensor:
        return values.expand(clients, *values.shape)

    return Split(
        to_all(((encoded - mean) / scale).float()),
        to_all(rows.y.float()),
        to_all(torch.zeros(len(rows.y), dtype=torch.int64)),
    )
