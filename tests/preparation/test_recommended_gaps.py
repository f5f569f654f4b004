"""`recommended` on tables in which a gap is the shortcut: what fills the gap shows it as well."""

import torch

import perinvfl as pf
from perinvfl.core.seeding import generator

SITES, ROWS = 3, 300


def test_where_gaps_change_their_meaning_the_filled_column_is_left_out_too() -> None:
    source = generator(0, "gaps")
    y = torch.randint(2, (SITES * ROWS,), generator=source)
    context = torch.arange(len(y)) % 2
    same = torch.rand(len(y), generator=source) < torch.where(context == 0, 0.95, 0.65)
    x = torch.randn(len(y), 3, generator=source)
    x[:, 0] += y  # a cause
    x[torch.where(same, y, 1 - y) == 1, 2] = torch.nan
    client = torch.arange(len(y)) // ROWS
    federation = pf.from_arrays(
        x.numpy(), y.numpy(), client=client.numpy(), context=context.numpy(), features=["blood", "age", "test"]
    )
    session = pf.start(federation, rounds=2).run()
    assert federation.schema.features == ("blood", "age", "test", "test missing")
    assert session.found["shortcut"]["left_out"] == [2, 3]
    assert str(session.found).startswith("test changes its meaning between contexts")
