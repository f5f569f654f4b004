"""Arithmetic over models (``dict[str, Tensor]``) and over states (nested tuples and dicts of tensors)."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Params = dict[str, Tensor]  # one model; stacked models carry leading axes
EMPTY: Params = {}  # for defaults; never written to


def map(f: Callable[..., Tensor], first: Params, *rest: Params) -> Params:
    """Apply f leaf by leaf to models with the same names."""
    if len(rest) == 1:  # the most frequent, and at every step
        second = rest[0]
        return {name: f(leaf, second[name]) for name, leaf in first.items()}
    return {name: f(leaf, *(other[name] for other in rest)) for name, leaf in first.items()}


def as_type(params: Params, dtype: torch.dtype) -> Params:
    """Every leaf of this type; without a copy of those that are."""
    return {name: leaf if leaf.dtype == dtype else leaf.to(dtype) for name, leaf in params.items()}


def over(f: Callable[..., Any], first: Any, *rest: Any) -> Any:
    """Like `map`, for any nesting of tuples and dicts (client and server states)."""
    return pytree.tree_map(f, first, *rest)


def leaves(tree: Any) -> list[Tensor]:
    return pytree.tree_leaves(tree)


def stack(trees: Sequence[Any]) -> Any:
    """[tree, tree, ...] -> one tree whose leaves carry a new leading axis; of a single tree, without a copy."""
    if len(trees) == 1:
        return over(lambda leaf: leaf.unsqueeze(0), trees[0])
    return over(lambda *parts: torch.stack(parts), *trees)


def flatten_axes(tree: Any) -> Any:
    """[T, n, ...] -> [T * n, ...] on every leaf."""
    return over(lambda leaf: leaf.flatten(0, 1), tree)


def split_axis(tree: Any, first: int) -> Any:
    """[T * n, ...] -> [T, n, ...] on every leaf."""
    return over(lambda leaf: leaf.unflatten(0, (first, -1)), tree)


def named_leaves(tree: Any, prefix: str) -> dict[str, Tensor]:
    """Every leaf under a readable path, for files."""
    paths, _ = pytree.tree_flatten_with_path(tree)
    return {prefix + pytree.keystr(path): leaf for path, leaf in paths}


def fill(tree: Any, named: dict[str, Tensor], prefix: str) -> Any:
    """The inverse of `named_leaves`: a tree of the same shape with the leaves found under their paths."""
    return pytree.tree_map_with_path(lambda path, leaf: named[prefix + pytree.keystr(path)].to(leaf.device), tree)
