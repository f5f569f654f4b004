"""Products of matrices on a CPU, by the faster of the two libraries that torch brings along.

torch leaves float32 products to MKL. On processors of AMD MKL does without AVX-512; oneDNN uses it, and is about twice
as fast there. Which of them computes depends on the processor and the shapes alone, so that the same run has the same
numbers again. No gradients: for passes that are written out.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

WORTH = 2**21  # multiplications; below, oneDNN takes longer to begin than it saves


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool = False) -> Tensor:
    """x · weightᵀ + bias, [B, out] from [B, in]; relu: and what is below 0 set to 0."""
    by = by_onednn if _is_worth(x, weight.shape[0]) else F.linear
    units = by(x, weight, bias)
    return units.relu_() if relu else units  # oneDNN's own would turn NaN into 0, and a run that breaks would go on


def product(a: Tensor, b: Tensor) -> Tensor:
    """a · b, of two matrices."""
    if _is_worth(a, b.shape[1]):
        return by_onednn(a, b.t(), None)
    return torch.mm(a, b)


def by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x · weightᵀ + bias by oneDNN, whatever their size."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _is_worth(a: Tensor, columns: int) -> bool:
    return MKL_IS_SLOW and a.shape[0] * a.shape[1] * columns >= WORTH and a.dtype == torch.float32 and a.is_cpu


def maker_of_processor() -> str:
    """Of the processor, as Linux calls it; empty where it cannot be read."""
    try:
        with Path("/proc/cpuinfo").open() as lines:
            return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")
    except (OSError, UnicodeDecodeError):
        return ""


# Whether this is a processor on which oneDNN has instructions that MKL does not use.
MKL_IS_SLOW = (
    torch.backends.cpu.get_cpu_capability() == "AVX512"
    and torch.backends.mkldnn.is_available()
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    and maker_of_processor() == "AuthenticAMD"
)
