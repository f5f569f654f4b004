"""The kernels of `units.py`, in Triton: what a perceptron with one output does beside its large products.

Every sum is taken in a fixed order, so the same inputs give the same bits.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["clients", "samples", "blocks"])
def weigh_units(
    units,  # [T, n, M, high], rows anywhere in memory
    weight,  # [T, n, high] float32
    out,  # [T, n, M] float32: each row times the weights
    clients,
    samples,
    high,
    trial_step,
    client_step,
    row_step,
    blocks,  # of rows of a model
    CUT: tl.constexpr,  # first negative units become 0, in place
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    PIECE: tl.constexpr,  # units that the threads of one warp load at once: a row is summed without the others
):
    model = tl.program_id(0) // blocks
    row = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    units += (model // clients).to(tl.int64) * trial_step + (model % clients).to(tl.int64) * client_step
    total = tl.zeros((ROWS, PIECE), tl.float32)
    for first in tl.static_range(0, UNITS, PIECE):
        unit = first + tl.arange(0, PIECE)
        place = row[:, None].to(tl.int64) * row_step + unit[None, :]
        there = (row < samples)[:, None] & (unit < high)[None, :]
        now = tl.load(units + place, there, 0.0).to(tl.float32)
        if CUT:
            now = tl.where(now < 0, 0.0, now)  # what is no number stays
            tl.store(units + place, now, there)
        total += now * tl.load(weight + model * high + unit, unit < high, 0.0)[None, :]
    tl.store(out + model.to(tl.int64) * samples + row, tl.sum(total, 1), row < samples)


@triton.jit(do_not_specialize=["clients", "samples", "share", "parts"])
def mask_slopes(
    slope,  # [T, n, M] gradient of the output
    units,  # [T, n, M, high], rows anywhere in memory
    out,  # the same: the slope of each row, 0 where a unit is 0
    of_weight,  # [T, n, S, high] float32: sums of slope times units over each of S parts of the rows
    clients,
    samples,
    high,
    trial_step,
    client_step,
    row_step,
    share,  # rows of a part, a multiple of ROWS
    parts,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
):
    model, part = tl.program_id(0), tl.program_id(1)
    unit = tl.arange(0, UNITS)
    begin = (model // clients).to(tl.int64) * trial_step + (model % clients).to(tl.int64) * client_step
    units += begin
    out += begin
    slope += model.to(tl.int64) * samples
    total = tl.zeros((ROWS, UNITS), tl.float32)  # summed over rows once: threads wait for each other for that
    for first in range(part * share, min(part * share + share, samples), ROWS):
        row = first + tl.arange(0, ROWS)
        place = row[:, None].to(tl.int64) * row_step + unit[None, :]
        there = (row < samples)[:, None] & (unit < high)[None, :]
        given = tl.load(slope + row, row < samples, 0.0).to(tl.float32)[:, None]
        now = tl.load(units + place, there, 0.0).to(tl.float32)
        tl.store(out + place, tl.where(now <= 0, 0.0, given), there)
        total += given * now
    of_weight += (model * parts + part).to(tl.int64) * high
    tl.store(of_weight + unit, tl.sum(total, 0), unit < high)
