"""GPU speed: `python -m benchmarks.gpu`. A sweep's sustained rate, and rounds a second of one small run."""

import dataclasses

import torch

from benchmarks.common import Row, median_seconds, product_rate, random_digits, show, step_flops
from perinvfl.algorithms import IRM, PerInvFL
from perinvfl.engine.simulation import Simulation
from perinvfl.learning.training import Training


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
    show(rows)


if __name__ == "__main__":
    main()
