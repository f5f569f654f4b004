"""Pooling of images, channels last, in Triton: the largest of 3 x 3, stepping by 2."""

import triton
import triton.language as tl

# A kernel is not compiled anew for each of them.
SIZES = ["height", "width", "out_height", "out_width", "blocks"]


@triton.jit(do_not_specialize=SIZES)
def pool(
    h,  # [N, H, W, C]
    out,  # [N, HO, WO, C]: the largest of 3 x 3, stepping by 2
    chosen,  # [N, HO, WO, C] uint8: which of the nine
    height,
    width,
    channels,
    out_height,
    out_width,
    blocks,  # of an image
    BLOCK: tl.constexpr,
):
    image = (tl.program_id(0) // blocks).to(tl.int64)
    h += image * height * width * channels
    out += image * out_height * out_width * channels
    chosen += image * out_height * out_width * channels
    place = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    there = place < out_height * out_width * channels
    channel, pixel = place % channels, place // channels
    y, x = pixel // out_width, pixel % out_width
    most = tl.full((BLOCK,), float("-inf"), tl.float32)
    found = tl.zeros((BLOCK,), tl.int32)
    for tap in tl.static_range(9):
        from_y, from_x = 2 * y - 1 + tap // 3, 2 * x - 1 + tap % 3
        seen = there & (from_y >= 0) & (from_x >= 0) & (from_y < height) & (from_x < width)
        now = tl.load(h + (from_y * width + from_x) * channels + channel, seen, float("-inf")).to(tl.float32)
        better = (now > most) | (now != now)  # what is no number stays, so that it is noticed
        most = tl.where(better, now, most)
        found = tl.where(better, tap, found)
    tl.store(out + place, most, there)
    tl.store(chosen + place, found.to(tl.uint8), there)


@triton.jit(do_not_specialize=SIZES)
def pool_back(
    slope,  # [N, HO, WO, C] gradient of out
    chosen,
    of_h,  # [N, H, W, C]
    height,
    width,
    channels,
    out_height,
    out_width,
    blocks,  # of an image
    BLOCK: tl.constexpr,
):
    image = (tl.program_id(0) // blocks).to(tl.int64)
    of_h += image * height * width * channels
    slope += image * out_height * out_width * channels
    chosen += image * out_height * out_width * channels
    place = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    there = place < height * width * channels
    channel, pixel = place % channels, place // channels
    y, x = pixel // width, pixel % width
    total = tl.zeros((BLOCK,), tl.float32)
    for corner in tl.static_range(4):  # a line between two windows belongs to both
        to_y, to_x = (y + corner // 2) // 2, (x + corner % 2) // 2
        seen = there & ((corner // 2 == 0) | (y % 2 == 1)) & ((corner % 2 == 0) | (x % 2 == 1))
        seen &= (to_y < out_height) & (to_x < out_width)
        to = (to_y * out_width + to_x) * channels + channel
        tap = (y - 2 * to_y + 1) * 3 + x - 2 * to_x + 1
        here = tl.load(chosen + to, seen, 255).to(tl.int32) == tap
        total += tl.where(here, tl.load(slope + to, seen, 0.0).to(tl.float32), 0.0)
    tl.store(of_h + place, total, there)
