"""Every random draw of a run, by (seed, client, round) and purpose alone: the simulator and a site draw the same."""

from collections.abc import Sequence

import torch
from torch import Tensor

from perinvfl.core.seeding import generator
from perinvfl.data.images import Augmentation
from perinvfl.learning.training import Training


def participants(seed: int, round: int, clients: int, fraction: float) -> Tensor:
    """[n] who takes part in a round, in order."""
    count = max(1, int(fraction * clients + 0.5))
    if count == clients:
        return torch.arange(clients)
    return torch.randperm(clients, generator=generator(seed, "participants", round))[:count].sort().values


def evaluated_clients(clients: int, count: int) -> Tensor | None:
    """[n] whom evaluations look at, in order, the same for every seed and method; None: at everyone."""
    if not 0 < count < clients:
        return None
    return torch.randperm(clients, generator=generator(0, "evaluated clients"))[:count].sort().values


def sample_indices(
    seed: int,
    client: int,
    round: int,
    purpose: str,
    samples: int,
    shape: tuple[int, int],  # steps, batch size
    augmentation: Augmentation,
    stride: int,  # samples that the client's data hold, padding included
) -> Tensor:
    """[steps, B] places in one client's data; where images are augmented, plus stride times the number of a view."""
    drawn = torch.randint(samples, shape, generator=generator(seed, purpose, client, round))
    if augmentation.views > 1:
        source = generator(seed, "views", purpose, client, round)
        drawn += stride * torch.randint(augmentation.views, shape, generator=source)
    return drawn


def indices_of_trials(
    seeds: Sequence[int],
    clients: list[list[int]],  # of each trial
    round: int,
    purpose: str,
    sizes: list[list[int]],  # by trial and client: how many samples it draws from
    shape: tuple[int, int],  # steps, batch size
    augmentations: Sequence[Augmentation],  # of each trial, or one for all
    stride: int | None,  # samples that the data of each client hold, padding included; None: without padding
) -> Tensor:
    """[T, n, steps, B] as `sample_indices`; trials of one seed draw alike where they have as many samples."""
    drawn: dict[tuple[int, int, int], Tensor] = {}
    rows = []
    for t, (seed, chosen) in enumerate(zip(seeds, clients, strict=True)):
        for i in chosen:
            size = sizes[t][i]
            if (seed, i, size) not in drawn:
                views = augmentations[t % len(augmentations)]
                drawn[seed, i, size] = sample_indices(seed, i, round, purpose, size, shape, views, stride or size)
            rows.append(drawn[seed, i, size])
    return torch.stack(rows).unflatten(0, (len(seeds), -1))


def shares(sizes: Tensor, weights: str) -> Tensor:
    """[..., n] the share of each client in the mean, from how many samples [..., n] each has."""
    if weights == "samples":
        return sizes.float() / sizes.float().sum(-1, keepdim=True)
    return torch.full(sizes.shape, 1 / sizes.shape[-1], device=sizes.device)


def batches_shape(training: Training, steps: int) -> tuple[int, int] | None:
    """Steps and batch size; None where every step looks at all of a client's data, or there is no step."""
    return (steps, training.batch_size) if training.batch_size and steps else None
