"""Versions and hardware, for the record."""

import os
import platform

import torch

import perinvfl


def environment(device: torch.device) -> dict[str, str | int]:
    """Versions and hardware, for the record."""
    hardware = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "perinvfl": perinvfl.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "device": device.type,
        "hardware": hardware,
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
    }
