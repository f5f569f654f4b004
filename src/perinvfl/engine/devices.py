"""Where is trained."""

import torch
from torch import Tensor

from perinvfl.errors import UserError


def pick_device(asked: str) -> torch.device:
    if asked == "cuda" and not torch.cuda.is_available():
        raise UserError('training.device = "cuda": no CUDA device is available here; use "cpu" or "auto".')
    return torch.device("cuda" if asked == "cuda" or (asked == "auto" and torch.cuda.is_available()) else "cpu")


def to_device(drawn: Tensor, device: torch.device) -> Tensor:
    """On a GPU without waiting for what it is at: the next round is drawn while it works on this one."""
    return drawn.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else drawn
