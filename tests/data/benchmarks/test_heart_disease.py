"""Four hospitals: every patient is used once, and nothing of a test decides how training rows are encoded."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import perinvfl as pf
from perinvfl.core.config import build
from perinvfl.data.benchmarks import heart_disease
from perinvfl.data.benchmarks.heart_disease import HOSPITALS, OWN, HeartSettings, heart_federation
from perinvfl.data.encoding import encode
from perinvfl.data.federation import Split
from perinvfl.errors import UserError

PATIENTS = {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}
ILL = {"cleveland": 139, "hungarian": 106, "switzerland": 115, "va": 149}


def ill(split: Split) -> list[int]:
    return (split.y * (split.context >= 0)).sum(1).long().tolist()


def sizes(split: Split) -> list[int]:
    return (split.context >= 0).sum(1).tolist()


def test_every_patient_of_every_hospital_is_used_once() -> None:
    federation = heart_federation(HeartSettings(), 0)
    assert federation.client_names == HOSPITALS and federation.task == "binary"
    assert federation.validation is not None and list(federation.tests) == [OWN]
    parts = [federation.train, federation.validation, federation.tests[OWN]]
    assert [sum(each) for each in zip(*map(sizes, parts), strict=True)] == list(PATIENTS.values())
    assert [sum(each) for each in zip(*map(ill, parts), strict=True)] == list(ILL.values())
    assert sizes(federation.tests[OWN]) == [60, 58, 24, 40]
    other = heart_federation(HeartSettings(), 1)
    assert not torch.equal(other.train.y, federation.train.y)
    assert torch.equal(heart_federation(HeartSettings(), 0).train.x, federation.train.x)


@pytest.mark.parametrize("hospital", HOSPITALS)
def test_a_hospital_that_is_left_out_only_tests(hospital: Any) -> None:
    federation = heart_federation(HeartSettings(leave_out=hospital), 0)
    assert hospital not in federation.client_names and federation.clients == 3
    assert federation.spectrum == (hospital,)
    test = federation.tests[hospital]
    assert sizes(test) == [PATIENTS[hospital]] * 3 and ill(test) == [ILL[hospital]] * 3
    assert not test.x.isnan().any() and test.x.shape[2:] == federation.shape
    train = federation.train.x[federation.train.context >= 0]
    assert train.mean(0).abs().max() < 1e-5, "standardised by what trains"


def test_gaps_and_categories_are_fitted_on_training_rows() -> None:
    federation = heart_federation(HeartSettings(leave_out="switzerland"), 0)
    encodings = {encoding.name: encoding for encoding in federation.schema.encodings}
    assert [name for name, encoding in encodings.items() if encoding.category] == list(heart_disease.CATEGORIES)
    assert encodings["cp"].levels == ("1", "2", "3", "4") and encodings["thal"].flagged
    # Cholesterol is 0 all over Switzerland: with these patients in training the median would be another.
    everyone = {e.name: e for e in heart_federation(HeartSettings(), 0).schema.encodings}
    assert encodings["chol"].median > everyone["chol"].median + 5
    chol = federation.schema.features.index("chol")
    zero = (0 - federation.schema.mean[chol]) / federation.schema.scale[chol]
    assert torch.allclose(federation.tests["switzerland"].x[..., chol], torch.tensor(zero))
    gaps = heart_federation(HeartSettings(leave_out="switzerland", zeros="missing"), 0)
    flag = gaps.schema.features.index("chol missing")
    assert gaps.tests["switzerland"].x[..., flag].unique().numel() == 1
    assert gaps.notes["encoding"]["missing"]["chol"] == 30 + 49  # type: ignore[index]


def test_a_left_out_patient_is_seen_as_predict_sees_one() -> None:
    federation = heart_federation(HeartSettings(leave_out="switzerland"), 0)
    first = [[38.0, 1, 3, 100, 0, torch.nan, 0, 179, 0, -1.1, 1, torch.nan, torch.nan]]  # the file's first Swiss row
    schema = federation.schema
    raw = encode(torch.tensor(first, dtype=torch.float64), schema.encodings)
    seen = (raw - torch.tensor(schema.mean).double()) / torch.tensor(schema.scale).double()
    assert torch.allclose(federation.tests["switzerland"].x[0, :1].double(), seen, atol=1e-5)
    session = pf.start(federation, "fedavg", rounds=2, model={"hidden": [4]}).run()
    assert session.predict(first, "va") in (["0"], ["1"])


@pytest.mark.parametrize("algorithm", ["fedavg", "ditto", "perinvfl", "recommended"])
def test_methods_learn_from_it(algorithm: str) -> None:
    federation = pf.load("heart_disease", leave_out="switzerland")
    settings: dict[str, Any] = {"fedavg": {"learning_rate": 0.3}, "recommended": {}}.get(
        algorithm, {"learning_rate": 0.3, "personal_learning_rate": 0.3}
    )
    session = pf.start(federation, pf.algorithm(algorithm, **settings), rounds=60, model={"hidden": [8]}).run()
    scores = session.evaluate()
    within = [score for score in scores[OWN].values() if score is not None]
    assert sum(within) / 3 > 0.68, within  # a constant answer: 0.59
    assert set(scores["switzerland"]) == {"cleveland", "hungarian", "va"}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"leave_out": "zurich"}, "must be one of"),
        ({"test_share": 0.0}, "leaves nothing to test on"),
        ({"test_share": 0.6, "holdout": 0.5}, "leave nothing to train on"),
    ],
)
def test_settings_are_checked(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        build(HeartSettings, given, "data")


def test_columns_can_be_left_aside_and_a_wrong_name_is_answered() -> None:
    without = heart_federation(HeartSettings(ignore=("thal", "chol")), 0)
    assert not [name for name in without.schema.features if name.startswith(("thal=", "chol"))]
    with pytest.raises(UserError, match='"cholesterol", which is no column'):
        heart_federation(HeartSettings(ignore=("cholesterol",)), 0)


def test_a_damaged_table_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    content = (heart_disease.EMBEDDED / heart_disease.FILE).read_text()
    (tmp_path / heart_disease.FILE).write_text(content.replace("cleveland,63", "cleveland,36", 1))
    monkeypatch.setattr(heart_disease, "EMBEDDED", tmp_path)
    with pytest.raises(UserError, match="is damaged: reinstall"):
        heart_federation(dataclasses.replace(HeartSettings(), ignore=("age",)), 0)
