"""How well the label is predicted by knowing nothing but the context of a row, or its client."""

import torch
from torch import Tensor

from perinvfl.data.own.rows import Rows

MUCH_ACCURACY, MUCH_AUROC, MUCH_VARIANCE = 0.1, 0.7, 0.2  # a label is told by the client from here on


def from_context(rows: Rows) -> dict[str, float]:
    """How well the label is predicted by the context alone, beside a prediction that knows nothing.

    Classes: the share of rows whose label is the most frequent one of their context, and of all. A quantity: the share
    of its variance that the means of the contexts explain.
    """
    groups = [rows.y[rows.context == number] for number in rows.context.unique().tolist()]
    if rows.task == "regression":
        total = float(rows.y.var(correction=0)) * len(rows.y)
        within = sum(float(group.var(correction=0)) * len(group) for group in groups)
        return {"explained": 1 - within / total if total else 0.0}
    right = sum(int((group == group.mode().values).sum()) for group in groups)
    return {"accuracy": right / len(rows.y), "constant": float((rows.y == rows.y.mode().values).double().mean())}


def from_client(rows: Rows) -> dict[str, float]:
    """The same for the client, each row predicted from the other rows of its client: small clients must not count.

    Of two classes also the AUROC: the chance that a row of the second class is at a client with more of it.
    """
    sizes = torch.bincount(rows.client, minlength=len(rows.clients)).double()[rows.client]  # [n]
    others = (sizes - 1).clamp(min=1)
    if rows.task == "regression":
        total = torch.zeros(len(rows.clients), dtype=torch.float64).index_add(0, rows.client, rows.y)[rows.client]
        errors = torch.where(sizes > 1, rows.y - (total - rows.y) / others, rows.y - rows.y.mean())
        spread = float(rows.y.var(correction=0)) * len(rows.y)
        return {"explained": max(0.0, 1 - float(errors.square().sum()) / spread) if spread else 0.0}
    own = torch.nn.functional.one_hot(rows.y.long(), len(rows.classes)).double()  # [n, classes]
    counts = torch.zeros(len(rows.clients), len(rows.classes), dtype=torch.float64).index_add(0, rows.client, own)
    shares = (counts[rows.client] - own + own.mean(0)) / (others + 1)[:, None]  # one row of the whole added
    score = {
        "accuracy": float((shares.argmax(1) == rows.y).double().mean()),
        "constant": float((rows.y == rows.y.mode().values).double().mean()),
    }
    return score | ({"auroc": _auroc(counts[:, 1], counts[:, 0])} if len(rows.classes) == 2 else {})


def _auroc(ones: Tensor, zeros: Tensor) -> float:
    """From the rows of each class at each client [clients]; two rows of one client are a tie."""
    pairs = ones[:, None] * zeros[None]  # [clients, clients]: a row of the second class here, one of the first there
    others = (ones + zeros - 1).clamp(min=1)
    here, there = ((ones - 1).clamp(min=0) / others)[:, None], (ones / others)[None]  # shares without the row itself
    won = (here > there).double() + 0.5 * (here == there).double()
    won.fill_diagonal_(0.5)
    return float((pairs * won).sum() / pairs.sum()) if bool(pairs.sum()) else 0.5


def told_by_client(rows: Rows) -> list[str]:
    """A warning where the client alone predicts the label well, with the numbers."""
    if len(rows.clients) < 2:
        return []
    score = from_client(rows)
    if "explained" in score:
        if score["explained"] < MUCH_VARIANCE:
            return []
        means = [float(rows.y[rows.client == number].mean()) for number in range(len(rows.clients))]
        least, most = (f"{value(means):.4g} at {rows.clients[means.index(value(means))]}" for value in (min, max))
        known = f"explains {100 * score['explained']:.0f} % of the label's variance (its mean is {least}, {most})"
    else:
        if score["accuracy"] - score["constant"] < MUCH_ACCURACY and score.get("auroc", 0.5) < MUCH_AUROC:
            return []
        auroc = f", AUROC {score['auroc']:.2f}" if "auroc" in score else ""
        known = (
            f"predicts the label in {100 * score['accuracy']:.1f} % of the rows (the most frequent label: "
            f"{100 * score['constant']:.1f} %{auroc}; {_range_of_shares(rows)})"
        )
    return [f"the client alone {known}: compare models with each client's own constant answer, not over all clients"]


def _range_of_shares(rows: Rows) -> str:
    """Of the class whose share differs most between clients."""
    shares = torch.stack([(rows.y == place).double() for place in range(len(rows.classes))], 1)  # [n, classes]
    by_client = torch.stack([shares[rows.client == number].mean(0) for number in range(len(rows.clients))])
    spread = by_client.amax(0) - by_client.amin(0)
    place = len(rows.classes) - 1 if len(rows.classes) == 2 else int(spread.argmax())
    column = by_client[:, place]
    low, high = int(column.argmin()), int(column.argmax())
    return (
        f'"{rows.classes[place]}" is {100 * float(column[low]):.0f} % at {rows.clients[low]} and '
        f"{100 * float(column[high]):.0f} % at {rows.clients[high]}"
    )
