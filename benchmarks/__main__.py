"""All benchmarks that this machine can run: `make bench`. Every figure is a ratio measured within one run."""

import subprocess
import sys

import torch


def main() -> None:
    names = [
        "start",
        "cpu",
        "memory",
        "durable",
        "recommended",
        "cluster",
        *(["gpu"] if torch.cuda.is_available() else []),
        "resnet",
    ]
    for name in names:  # each in a process of its own: threads and memory of one do not disturb the next
        print(f"== {name}", flush=True)
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)
    if "gpu" not in names:
        print("== gpu: no CUDA device here; benchmarks/RESULTS.md has the last measured figures")


if __name__ == "__main__":
    main()
