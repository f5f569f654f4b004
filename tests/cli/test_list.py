"""What an experiment file may name: shown by `perinvfl list`, and presets that are sound."""

from perinvfl.runs.experiment import read_experiment
from perinvfl.runs.presets import preset_file, preset_line, preset_names
from tests.commands import perinvfl


def test_list_shows_every_setting() -> None:
    printed = perinvfl("list")
    assert printed.returncode == 0
    for word in (
        "perinvfl",
        "pfedme",
        "irm_ft",
        "alone",
        "rc_mnist",
        "structural",
        "β",
        "λ",
        "0.01 to 100000, log",
        "[model]",
    ):
        assert word in printed.stdout
    assert "beta" in printed.stdout and "p_train" in printed.stdout and "batch_size" in printed.stdout


def test_every_preset_is_a_sound_experiment() -> None:
    for name in preset_names():
        experiment = read_experiment(preset_file(name))
        assert experiment.name == name and len(experiment.trials) == 1 and preset_line(name)
