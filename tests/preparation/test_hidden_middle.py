"""What a reference model is shown of images: their middle hidden, their borders left where they belong."""

import dataclasses

import pytest
import torch

from perinvfl.data.benchmarks.drawn import DrawnSettings, drawn_federation
from perinvfl.data.benchmarks.random import random_federation
from perinvfl.data.images import Augmentation, without_middle
from perinvfl.errors import UserError
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings
from perinvfl.preparation.inferred_contexts import shown
from perinvfl.preparation.program import check_preparation
from perinvfl.preparation.settings import ContextSettings
from tests.prepared import prepared


def test_the_reference_model_sees_borders_where_they_belong() -> None:
    """Borders exchanged would hide the very shortcut that it is to find."""
    birds = dict(train_per_client=12, test_per_client=4, left_over=0, holdout=4, size=16, flip=True, middle=(0.4, 0.8))
    federation = drawn_federation(DrawnSettings(**birds), 0)  # type: ignore[arg-type]
    assert federation.augmentation.middle == (0.4, 0.8)
    whole = shown(ContextSettings(infer="hard"), federation)
    assert whole.augmentation == Augmentation(flip=True) and torch.equal(whole.train.x, federation.train.x)
    settings = ContextSettings(infer="hard", hide_middle=0.7, reference_rounds=2)
    part = shown(settings, federation)
    assert federation.validation is not None and part.validation is not None
    assert torch.equal(part.train.x, without_middle(federation.train.x, 0.7))
    assert torch.equal(part.validation.x, without_middle(federation.validation.x, 0.7))
    training = Training(batch_size=4, device="cpu")
    made = prepared(federation, 0, settings, ModelSettings(kind="resnet18", width=2), training)
    assert made.augmentation == federation.augmentation
    assert torch.equal(made.train.x, federation.train.x)  # what trains afterwards sees all
    assert all(torch.equal(split.x, federation.validation.x) for split in made.inferred.values())


def test_a_hidden_middle_needs_images_and_one_reference_model() -> None:
    with pytest.raises(UserError, match="these data have no middle"):
        how = ContextSettings(infer="hard", hide_middle=0.5)
        check_preparation(how, random_federation(clients=2, shape=(4,)), ModelSettings())
    with pytest.raises(UserError, match="leave out hide_middle"):
        dataclasses.replace(ContextSettings(infer="hard"), hide_middle=0.5, every=10).check("contexts")
