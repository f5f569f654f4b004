"""`perinvfl data`: check data of your own; who holds what; the table or the pictures of a benchmark."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perinvfl.cli.data_check import check
from perinvfl.cli.data_partition import partition
from perinvfl.core.saying import say
from perinvfl.errors import UserError
from perinvfl.runs.catalogue import read_catalogue

if TYPE_CHECKING:
    from torch import Tensor

    from perinvfl.data.benchmarks.birds import Plan

app = typer.Typer(
    help="Check data of your own; show who holds what; make the pictures of a benchmark.", no_args_is_help=True
)
app.command()(check)
app.command()(partition)

WATERBIRD = read_catalogue().benchmarks["waterbird"]
SIZE, ALBUMS = WATERBIRD.setting("size").default, Path(WATERBIRD.setting("albums").default)
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other setting, such as left_over=0.")
]
Preview = Annotated[
    Path | None, typer.Option("--preview", help="Write a contact sheet by client and group (PNG; needs Pillow).")
]


@app.command()
def waterbird(
    cub: Annotated[Path, typer.Option("--cub", help="Folder CUB_200_2011, with segmentations.")],
    places: Annotated[Path, typer.Option("--places", help="Folder of Places365.")],
    size: Annotated[int, typer.Option("--size", help="Width and height of the images, in pixels.")] = SIZE,
    seeds: Annotated[str, typer.Option("--seeds", help="Seeds to make pictures for, such as 0,101,102.")] = "0",
    albums: Annotated[Path, typer.Option("--albums", help="Folder for the pictures, one file per seed.")] = ALBUMS,
    corrected: Annotated[
        bool,
        typer.Option(
            "--corrected",
            help="Count towhees, meadowlarks and pewees, which the usual list takes for waterbirds, as landbirds.",
        ),
    ] = False,
    set: Set = None,
    preview: Preview = None,
) -> None:
    """Make the pictures of WaterBird once; training then needs neither the photographs nor Pillow."""
    from perinvfl.core import config
    from perinvfl.data.benchmarks.waterbird import WaterbirdSettings, open_album

    given = {"cub": str(cub), "places": str(places), "size": size, "albums": str(albums), "corrected": corrected}
    settings = config.build(WaterbirdSettings, given | _settings(set), "data")
    first = None
    for seed in _seeds(seeds):
        began = time.perf_counter()
        path, album = open_album(settings, seed)
        taken = time.perf_counter() - began
        say(f"{path}: {len(album.images)} pictures, {path.stat().st_size / 2**20:.1f} MiB, {taken:.0f} s")
        first = first or (album.plan, album.images)
    for line in _summary(album.about):
        say(line)
    if preview is not None and first is not None:
        _write_sheet(*first, preview)


@app.command("drawn_birds")
def drawn_birds(
    seed: Annotated[int, typer.Option("--seed", help="Seed of the draw.")] = 0, set: Set = None, preview: Preview = None
) -> None:
    """Show the drawn stand-in for WaterBird. Every run draws it again, so nothing is kept."""
    from perinvfl.core import config
    from perinvfl.data.benchmarks.drawn import DrawnSettings, drawn_pictures

    plan, images = drawn_pictures(config.build(DrawnSettings, _settings(set), "data"), seed)
    say(f"{len(images)} pictures, {plan.train.numel()} of them to train on")
    if preview is not None:
        _write_sheet(plan, images, preview)


@app.command("heart_disease")
def heart_disease(
    out: Annotated[Path, typer.Option("-o", "--out", help="The file to write.")] = Path("hospitals.csv"),
) -> None:
    """Write the heart-disease table of four hospitals as a CSV file, to practise with."""
    from perinvfl.core.files import write_atomically
    from perinvfl.data.benchmarks.heart_disease import HOSPITALS, patients_table

    table = patients_table()
    write_atomically(out, table)
    say(f"{out}: {len(table.splitlines()) - 1} patients of {len(HOSPITALS)} hospitals")


def _settings(overrides: list[str] | None) -> dict[str, Any]:
    from perinvfl.runs.experiment import parse_override

    return dict(parse_override(override) for override in overrides or [])


def _seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds {text}: must be whole numbers separated by commas, such as 0,101.") from None


def _summary(about: dict[str, Any]) -> list[str]:
    """What was counted when the pictures were made."""
    left = about["left over"]
    lines = [
        f"Birds without a photograph or a mask, skipped, by client: {about['skipped']}",
        f"Birds left over, by client: {left['there']}; tested on, as far as backgrounds suffice: {left['tested on']}",
    ]
    return lines + ([f"Missing backgrounds: {', '.join(about['absent'])}"] if about["absent"] else [])


def _write_sheet(plan: "Plan", images: "Tensor", path: Path) -> None:
    from perinvfl.plots.contact_sheet import write_sheet

    write_sheet(plan, images, path)
    say(path)
