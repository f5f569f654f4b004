"""A federation with all its training data in one place, for methods that say what federation costs."""

import dataclasses

import torch

from perinvfl.data.federation import Federation, Split
from perinvfl.preparation.phases import Notes


def pooled_view(federation: Federation, notes: Notes) -> Federation:
    """One client that holds every client's training samples, each in the context of the client it came from.

    Tests and validation stay with their clients: every client is measured as under any other method.
    """
    x, y, context = federation.train
    real = context >= 0
    owner = torch.arange(federation.clients)[:, None].expand_as(context)
    return dataclasses.replace(
        federation,
        train=Split(x[real][None], y[real][None], owner[real][None]),
        contexts=federation.clients,
        schema=dataclasses.replace(federation.schema, contexts=federation.client_names),
    )
