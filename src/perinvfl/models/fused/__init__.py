"""Convolutions, group norms and pooling of many models at once, each as one kernel of a GPU.

Under vmap a library's convolution becomes one with as many groups as there are models, patches of images take nine
times the memory of the images, and a norm with what follows it goes over memory again and again. The kernels here do
none of that. They need Triton and a GPU; where there is none, the same is computed step by step.
"""

from perinvfl.models.fused.launch import EPSILON, FEWEST
from perinvfl.models.fused.operations import convolve, convolves, group_norm, normalises, pool, pools

__all__ = ["EPSILON", "FEWEST", "convolve", "convolves", "group_norm", "normalises", "pool", "pools"]
