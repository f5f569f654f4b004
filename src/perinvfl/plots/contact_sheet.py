"""A contact sheet of birds: a few pictures of each group at each client, in training and in a test context."""

from pathlib import Path

from torch import Tensor

from perinvfl.core.files import writing
from perinvfl.data.benchmarks.birds import GROUPS, Plan
from perinvfl.data.photos import pillow

EACH = 6  # pictures of a group at a client
GAP = 4
LINE = 14  # height of a line of text
SMALLEST = 64  # pixels at which a picture is shown at least


def write_sheet(plan: Plan, images: Tensor, path: Path) -> None:
    """Columns are groups; rows are clients, first their training birds and then those of the first test context."""
    image = pillow()
    from PIL import ImageDraw

    size = images.shape[-1]
    zoom = -(-SMALLEST // size)
    step = size * zoom + GAP
    case = next(iter(plan.cases))
    parts = [(f"client {i}, training", rows) for i, rows in enumerate(plan.train)]
    parts += [(f"client {i}, test p = {case}", rows[plan.cases[case][i]]) for i, rows in enumerate(plan.tests)]
    sheet = image.new("RGB", (len(GROUPS) * (EACH * step + GAP) + GAP, len(parts) * (step + LINE) + GAP), "white")
    draw = ImageDraw.Draw(sheet)
    group = 2 * plan.y + plan.pictures[:, 2]
    for row, (title, pictures) in enumerate(parts):
        top = GAP + row * (step + LINE)
        for column, name in enumerate(GROUPS):
            left = GAP + column * (EACH * step + GAP)
            chosen = pictures[group[pictures] == column]
            draw.text((left, top), f"{title}: {len(chosen)} {name}", fill="black")
            for place, picture in enumerate(chosen[:EACH].tolist()):
                pixels = images[picture].permute(1, 2, 0).contiguous().numpy().tobytes()
                shown = image.frombytes("RGB", (size, size), pixels).resize((size * zoom, size * zoom), 0)
                sheet.paste(shown, (left + place * step, top + LINE))
    with writing(path):
        sheet.save(path, format="PNG")
