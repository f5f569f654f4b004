"""The kernels themselves, in Triton: convolutions and group norms for many models at once, channels last.

Imported only where Triton is there. Every sum is taken in a fixed order, so the same inputs give the same bits.
"""

import triton
import triton.language as tl

from perinvfl.models.fused.pool_kernels import pool, pool_back

__all__ = ["convolve", "gather", "lay_out", "normalise", "normalise_back", "pool", "pool_back", "weigh"]

# Sizes of images: a kernel is not compiled anew for each.
SIZES = ["images", "height", "width", "out_height", "out_width"]


@triton.jit
def lay_out(
    weight,  # [M, O, J] float32, J = C * K * K
    matrix,  # [M, K * K, C, O]
    outs,
    ins,
    TAPS: tl.constexpr,
    TO: tl.constexpr,
    TAKEN: tl.constexpr,
):
    """A weight as the products of a convolution read it."""
    model = tl.program_id(2).to(tl.int64) * outs * ins * TAPS
    to = tl.program_id(0) * TO + tl.arange(0, TO)
    taken = tl.program_id(1) * TAKEN + tl.arange(0, TAKEN)
    there = (to < outs)[:, None] & (taken < ins * TAPS)[None, :]
    part = tl.load(weight + model + to[:, None] * (ins * TAPS) + taken[None, :], there, 0.0)
    place = (taken % TAPS * ins + taken // TAPS) * outs
    tl.store(matrix + model + place[None, :] + to[:, None], part, there)


@triton.jit(do_not_specialize=["parts"])
def gather(
    found,  # [M, S, K * K, C, O] float32
    weight,  # [M, O, J] float32: the sum over S
    outs,
    ins,
    parts,
    TAPS: tl.constexpr,
    TO: tl.constexpr,
    TAKEN: tl.constexpr,
):
    """The gradient of a weight from its parts, laid out like the weight."""
    model = tl.program_id(2).to(tl.int64)
    size = outs * ins * TAPS
    to = tl.program_id(0) * TO + tl.arange(0, TO)
    taken = tl.program_id(1) * TAKEN + tl.arange(0, TAKEN)
    there = (to < outs)[:, None] & (taken < ins * TAPS)[None, :]
    place = (taken % TAPS * ins + taken // TAPS) * outs
    total = tl.zeros((TO, TAKEN), tl.float32)
    for part in range(parts):
        total += tl.load(found + (model * parts + part) * size + place[None, :] + to[:, None], there, 0.0)
    tl.store(weight + model * size + to[:, None] * (ins * TAPS) + taken[None, :], total, there)


@triton.jit(do_not_specialize=SIZES)
def convolve(
    h,  # [M, B, H, W, C]
    weight,  # [M, TALL * BROAD, C, O] in memory; `from_step` and `to_step` say how to walk it
    out,  # [M, B, HO, WO, O]
    images,
    height,
    width,
    ins,
    out_height,
    out_width,
    outs,
    from_step,
    to_step,
    TALL: tl.constexpr,  # the window
    BROAD: tl.constexpr,
    STEP_Y: tl.constexpr,
    STEP_X: tl.constexpr,
    PAD_Y: tl.constexpr,
    PAD_X: tl.constexpr,
    BACK: tl.constexpr,  # the gradient of the input: h is that of the output, and steps spread it out
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    FROM: tl.constexpr,
    TO: tl.constexpr,
):
    model = tl.program_id(2).to(tl.int64)
    h += model * images * height * width * ins
    weight += model * TALL * BROAD * ins * outs
    out += model * images * out_height * out_width * outs
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < images * out_height * out_width
    image = row // (out_height * out_width)
    y = row // out_width % out_height
    x = row % out_width
    to = tl.program_id(1) * TO + tl.arange(0, TO)
    total = tl.zeros((ROWS, TO), tl.float32)
    for tap in range(TALL * BROAD):
        if BACK:
            up, across = y + PAD_Y - tap // BROAD, x + PAD_X - tap % BROAD
            seen = there & (up >= 0) & (across >= 0) & (up % STEP_Y == 0) & (across % STEP_X == 0)
            from_y, from_x = up // STEP_Y, across // STEP_X
        else:
            from_y, from_x = y * STEP_Y + tap // BROAD - PAD_Y, x * STEP_X + tap % BROAD - PAD_X
            seen = there & (from_y >= 0) & (from_x >= 0)
        seen &= (from_y < height) & (from_x < width)
        pixel = ((image * height + from_y) * width + from_x) * ins
        for first in range(0, ins, FROM):
            channel = first + tl.arange(0, FROM)
            part = tl.load(h + pixel[:, None] + channel[None, :], seen[:, None] & (channel < ins)[None, :], 0.0)
            matrix = tl.load(
                weight + tap * ins * outs + channel[:, None] * from_step + to[None, :] * to_step,
                (channel < ins)[:, None] & (to < outs)[None, :],
                0.0,
            )
            total = tl.dot(part, matrix, total, input_precision=PRECISION)
    tl.store(out + row[:, None] * outs + to[None, :], total, there[:, None] & (to < outs)[None, :])


@triton.jit(do_not_specialize=[*SIZES, "parts", "share"])
def weigh(
    h,  # [M, B, H, W, C]
    slope,  # [M, B, HO, WO, O]
    out,  # [M, S, TALL * BROAD, C, O] float32: the gradient of the weights from each of S parts of the rows
    images,
    height,
    width,
    ins,
    out_height,
    out_width,
    outs,
    parts,
    share,  # rows of a part, a multiple of ROWS
    TALL: tl.constexpr,
    BROAD: tl.constexpr,
    STEP_Y: tl.constexpr,
    STEP_X: tl.constexpr,
    PAD_Y: tl.constexpr,
    PAD_X: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    FROM: tl.constexpr,
    TO: tl.constexpr,
):
    model = tl.program_id(2).to(tl.int64)
    h += model * images * height * width * ins
    slope += model * images * out_height * out_width * outs
    part, tap = tl.program_id(1) // (TALL * BROAD), tl.program_id(1) % (TALL * BROAD)
    out += ((model * parts + part) * TALL * BROAD + tap) * ins * outs
    blocks = tl.cdiv(outs, TO)
    channel = tl.program_id(0) // blocks * FROM + tl.arange(0, FROM)
    to = tl.program_id(0) % blocks * TO + tl.arange(0, TO)
    rows = images * out_height * out_width
    total = tl.zeros((FROM, TO), tl.float32)
    for first in range(part * share, min(part * share + share, rows), ROWS):
        row = first + tl.arange(0, ROWS)
        there = row < rows
        from_y = row // out_width % out_height * STEP_Y + tap // BROAD - PAD_Y
        from_x = row % out_width * STEP_X + tap % BROAD - PAD_X
        seen = there & (from_y >= 0) & (from_x >= 0) & (from_y < height) & (from_x < width)
        pixel = ((row // (out_height * out_width) * height + from_y) * width + from_x) * ins
        left = tl.load(h + pixel[:, None] + channel[None, :], seen[:, None] & (channel < ins)[None, :], 0.0)
        right = tl.load(slope + row[:, None] * outs + to[None, :], there[:, None] & (to < outs)[None, :], 0.0)
        total = tl.dot(tl.trans(left), right, total, input_precision=PRECISION)
    tl.store(out + channel[:, None] * outs + to[None, :], total, (channel < ins)[:, None] & (to < outs)[None, :])


@triton.jit
def _over_group(values, GROUPS: tl.constexpr, EACH: tl.constexpr):
    """[C] -> [C], each the sum over its group."""
    sums = tl.sum(tl.reshape(values, (GROUPS, EACH)), 1)
    return tl.reshape(tl.broadcast_to(sums[:, None], (GROUPS, EACH)), (GROUPS * EACH,))


@triton.jit(do_not_specialize=["images", "pixels"])
def normalise(
    h,  # [M * B, P, C]
    around,  # the same, or h where nothing is added
    weight,  # [M, C] float32
    bias,
    out,  # [M * B, P, C]
    means,  # [M * B, C] float32
    scales,
    images,
    channels,
    epsilon,
    pixels,
    GROUPS: tl.constexpr,  # that one program looks after
    EACH: tl.constexpr,
    RELU: tl.constexpr,
    ADD: tl.constexpr,
    PIXELS: tl.constexpr,
):
    image = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * GROUPS * EACH + tl.arange(0, GROUPS * EACH)
    lines = tl.arange(0, PIXELS)
    place = image * pixels * channels + lines[:, None] * channels + channel[None, :]
    # Squares are summed around the mean of the first pixels: around 0 they would cancel where a mean is large.
    there = (lines < pixels)[:, None]
    begins = tl.sum(tl.load(h + place, there, 0.0).to(tl.float32), 0)
    near = _over_group(begins, GROUPS, EACH) / (min(PIXELS, pixels) * EACH)
    sums = tl.zeros((GROUPS * EACH,), tl.float32)
    squares = tl.zeros((GROUPS * EACH,), tl.float32)
    for first in range(0, pixels, PIXELS):
        there = (first + lines < pixels)[:, None]
        gap = tl.load(h + place + first * channels, there, 0.0).to(tl.float32) - near[None, :]
        gap = tl.where(there, gap, 0.0)
        sums += tl.sum(gap, 0)
        squares += tl.sum(gap * gap, 0)
    off = _over_group(sums, GROUPS, EACH) / (pixels * EACH)
    spread = _over_group(squares, GROUPS, EACH) / (pixels * EACH) - off * off
    mean = near + off
    scale = 1 / tl.sqrt(tl.maximum(spread, 0.0) + epsilon)
    tl.store(means + image * channels + channel, mean)
    tl.store(scales + image * channels + channel, scale)
    own = image // images * channels + channel
    slope, shift = tl.load(weight + own), tl.load(bias + own)
    for first in range(0, pixels, PIXELS):
        there = (first + lines < pixels)[:, None]
        now = tl.load(h + place + first * channels, there, 0.0).to(tl.float32)
        now = (now - mean[None, :]) * scale[None, :] * slope[None, :] + shift[None, :]
        if ADD:
            now += tl.load(around + place + first * channels, there, 0.0).to(tl.float32)
        if RELU:
            now = tl.where(now < 0, 0.0, now)  # what is no number stays
        tl.store(out + place + first * channels, now, there)


@triton.jit(do_not_specialize=["images", "pixels"])
def normalise_back(
    slope,  # [M * B, P, C] gradient of out
    h,
    out,
    weight,
    bias,
    means,
    scales,
    of_h,  # [M * B, P, C]
    of_around,  # the same; written where ADD
    of_weight,  # [M * B, C] float32: from each image
    of_bias,
    images,
    channels,
    pixels,
    GROUPS: tl.constexpr,
    EACH: tl.constexpr,
    RELU: tl.constexpr,
    ADD: tl.constexpr,
    PIXELS: tl.constexpr,
):
    image = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * GROUPS * EACH + tl.arange(0, GROUPS * EACH)
    lines = tl.arange(0, PIXELS)
    place = image * pixels * channels + lines[:, None] * channels + channel[None, :]
    mean, scale = tl.load(means + image * channels + channel), tl.load(scales + image * channels + channel)
    own = image // images * channels + channel
    factor, shift = tl.load(weight + own), tl.load(bias + own)
    plain = tl.zeros((GROUPS * EACH,), tl.float32)
    along = tl.zeros((GROUPS * EACH,), tl.float32)
    for first in range(0, pixels, PIXELS):
        there = (first + lines < pixels)[:, None]
        step = place + first * channels
        given = tl.load(slope + step, there, 0.0).to(tl.float32)
        normal = (tl.load(h + step, there, 0.0).to(tl.float32) - mean[None, :]) * scale[None, :]
        if RELU and ADD:
            given = tl.where(tl.load(out + step, there, 0.0) <= 0, 0.0, given)
        elif RELU:  # what came out is known from what went in, which spares memory a pass
            given = tl.where(normal * factor[None, :] + shift[None, :] <= 0, 0.0, given)
        plain += tl.sum(given, 0)
        along += tl.sum(given * normal, 0)
        if ADD:
            tl.store(of_around + step, given, there)
    tl.store(of_weight + image * channels + channel, along)
    tl.store(of_bias + image * channels + channel, plain)
    count = pixels * EACH
    level = _over_group(plain * factor, GROUPS, EACH) / count
    tilt = _over_group(along * factor, GROUPS, EACH) / count
    for first in range(0, pixels, PIXELS):
        there = (first + lines < pixels)[:, None]
        step = place + first * channels
        normal = (tl.load(h + step, there, 0.0).to(tl.float32) - mean[None, :]) * scale[None, :]
        given = tl.load(slope + step, there, 0.0).to(tl.float32)
        if RELU and ADD:
            given = tl.where(tl.load(out + step, there, 0.0) <= 0, 0.0, given)
        elif RELU:
            given = tl.where(normal * factor[None, :] + shift[None, :] <= 0, 0.0, given)
        tl.store(
            of_h + step, (given * factor[None, :] - level[None, :] - normal * tilt[None, :]) * scale[None, :], there
        )
