"""Where is trained."""

import torch

from perinvfl.errors import UserError


def pick_device(asked: str) -> torch.device:
    if asked == "cuda" and not torch.cuda.is_available():
        raise UserError('training.device = "cuda": no CUDA device is available here; use "cpu" or "auto".')
    return torch.device("cuda" if asked == "cuda" or (asked == "auto" and torch.cuda.is_available()) else "cpu")
