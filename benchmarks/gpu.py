"""GPU speed: `python -m benchmarks.gpu`. A sweep's sustained rate, rounds a second of one small run, and whole runs."""

import dataclasses
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.common import Row, median_seconds, product_rate, random_digits, show, step_flops
from perinvfl.algorithms import IRM, PerInvFL
from perinvfl.engine.simulation import Simulation
from perinvfl.learning.training import Training
from perinvfl.runs.experiment import Experiment, read_experiment
from perinvfl.runs.progress import Lines
from perinvfl.runs.search import search
from perinvfl.runs.train import train


def sweep_rate(precision: str, trials: int = 24, clients: int = 4, samples: int = 12500, rounds: int = 10) -> float:
    """FLOP/s of full-batch IRM, trials x clients x samples as one program."""
    base = IRM(learning_rate=0.1, penalty_weight=100.0, warmup_rounds=5)
    algorithms = [dataclasses.replace(base, learning_rate=0.1 / (1 + trial)) for trial in range(trials)]
    training = Training(device="cuda", precision=precision)  # type: ignore[arg-type]
    simulation = Simulation(algorithms, [random_digits(clients, samples)], [0] * trials, training)

    def work() -> None:
        for _ in range(rounds):
            simulation.round()

    return rounds * step_flops(trials * clients * samples) / median_seconds(work, 3, 1)


def round_rate(precision: str, batch: int = 512, rounds: int = 200, trials: int = 1) -> float:
    """Rounds a second of PerInvFL with R = S = 1 on mini-batches of 4 clients, all trials together."""
    algorithms = [PerInvFL(learning_rate=0.01 / (1 + trial), personal_learning_rate=0.01) for trial in range(trials)]
    training = Training(device="cuda", precision=precision, batch_size=batch)  # type: ignore[arg-type]
    simulation = Simulation(algorithms, [random_digits(4, 12500)], [0] * trials, training)

    def work() -> None:
        for _ in range(rounds):
            simulation.round()

    return rounds / median_seconds(work, 3, 1)


def search_seconds(together: int, trials: int = 24, method: str = "IRM", *changes: str) -> float:
    """Of trials of the search behind Table 2, so many in one program: data, rounds, evaluations and records."""
    experiment = search(read_experiment(Path("experiments/rc_mnist.toml"), list(changes)), trials, 0)
    chosen = tuple(trial for trial in experiment.trials if trial.method == method)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        train(Experiment(experiment.name, chosen), Path(folder), Lines(lambda _: None), together)
        return time.perf_counter() - began


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"8192^3 product: tf32 {product_rate(8192, torch.float32, 'cuda') / 1e12:.0f} TFLOP/s, ", end="")
    print(f"bfloat16 {product_rate(8192, torch.bfloat16, 'cuda') / 1e12:.0f} TFLOP/s")
    rows = []
    for precision in ("tf32", "bfloat16"):
        target = 190.0 if precision == "bfloat16" else 100.0
        rows.append(Row(f"GPU, sweep 24 x 4 x 12500, {precision}", sweep_rate(precision) / 1e12, target, "TFLOP/s"))
    for precision in ("float32", "bfloat16"):
        rows.append(Row(f"GPU, one run 4 x 512, R = S = 1, {precision}", round_rate(precision), 1500.0, "rounds/s"))
    one, many = (round_rate("tf32", trials=trials, rounds=100) for trials in (1, 24))
    rows.append(Row("GPU, 24 trials of 4 x 512 in one program, times faster than 24 runs", 24 * many / one, 2.0))
    one, many = (sweep_rate("tf32", trials=trials) for trials in (1, 24))
    rows.append(Row("GPU, the same with full batches, of which one run fills the GPU", many / one, 2.0))
    search_seconds(1, 1, "IRM", "training.rounds=20")  # what is done once in a process
    whole = {together: search_seconds(together) for together in (24, 1)}
    print(f"24 whole trials: {whole[24]:.1f} s in one program, {whole[1]:.1f} s as 24 runs")
    what = "GPU, 24 whole trials of Table 2's search (IRM, 200 full-batch rounds), times faster than 24 runs"
    rows.append(Row(what, whole[1] / whole[24], 2.0))
    show(rows)


if __name__ == "__main__":
    main()
