"""WaterBird: birds of CUB-200-2011 cut out and put before photographs of land and water, dealt out to four clients.

The photographs are for research only and are no part of this package: settings say where they lie. Pictures are made
once and kept in an album, whose name is a checksum of the recipe; where the album is, neither the photographs nor
Pillow are needed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from perinvfl.core.files import is_there
from perinvfl.core.hyper import hyper
from perinvfl.core.naming import shortened
from perinvfl.data import photos
from perinvfl.data.benchmarks.album import Album, read_about, read_album, recipe_name, write_album
from perinvfl.data.benchmarks.bird_settings import BirdSettings
from perinvfl.data.benchmarks.birds import LEFT_OVER, Flock, bird_federation, draw_plan
from perinvfl.data.federation import Federation
from perinvfl.errors import UserError

LAW = 1  # counted up when the same settings make other pictures


@dataclass(frozen=True)
class WaterbirdSettings(BirdSettings):
    ranges: tuple[tuple[int, ...], ...] = hyper(
        ((0, 1715), (1716, 2908), (2909, 3844), (3845, 5993)),
        "first and last photograph of each client, by place in the CUB training split, which is sorted by "
        "species, so that clients have different ones; the default is the paper's",
        least=0,
    )
    corrected: bool = hyper(
        False,
        'count towhees, meadowlarks and pewees as landbirds, which they are; the usual search for "tern" puts '
        "them (Eastern, Western) among waterbirds; false does as that search does",
    )
    cub: str = hyper(
        "",
        "folder CUB_200_2011 with its segmentations, from which birds are cut out; may be empty if the "
        "finished pictures are in albums",
    )
    places: str = hyper(
        "", "folder of Places365, from which backgrounds are taken; may be empty if the finished pictures are in albums"
    )
    albums: str = hyper(
        "data/waterbird",
        "folder in which finished pictures are kept, so that they are made only once; the default lies in the "
        "current folder",
    )

    def check(self, where: str) -> None:
        super().check(where)
        if len(self.ranges) != len(self.p_train):
            raise UserError(f"{where}.p_train has {len(self.p_train)} entries for {len(self.ranges)} ranges; one each.")
        if any(len(range_) != 2 or range_[0] > range_[1] for range_ in self.ranges):
            raise UserError(f"{where}.ranges = {self.ranges}: each must be a first and a last place.")
        if bool(self.cub) != bool(self.places):
            raise UserError(f"{where}.cub and {where}.places go together; give both, or neither.")

    def recipe(self, seed: int) -> dict[str, Any]:
        """All that decides the pictures, but for the photographs themselves."""
        keys = ("p_train", "p_test", "train_per_client", "test_per_client", "left_over", "size", "ranges", "corrected")
        return {"law": LAW, "seed": seed} | {key: getattr(self, key) for key in keys}


def waterbird_federation(settings: WaterbirdSettings, seed: int) -> Federation:
    settings.check("waterbird")
    _, album = open_album(settings, seed)
    notes: dict[str, object] = {
        "album": {key: album.about[key] for key in ("photographs", "skipped", "absent", "left over")}
    }
    return bird_federation("waterbird", settings, album.plan, album.images, notes)


def open_album(
    settings: WaterbirdSettings, seed: int, progress: Callable[[int], None] | None = None
) -> tuple[Path, Album]:
    """The album of these settings, made if it is not there or was made from other photographs."""
    path = Path(settings.albums) / recipe_name("waterbird", settings.recipe(seed))
    if not settings.cub:
        if is_there(path):
            return path, _read(path, path.stat().st_mtime_ns)
        raise UserError(
            f"{shortened(str(path))} is not there; `perinvfl data waterbird --cub DIR --places DIR --albums "
            f"{shortened(settings.albums)}` "
            "makes it, or set data.cub and data.places."
        )
    library = photos.find_photographs(Path(settings.cub), Path(settings.places), settings.ranges, settings.corrected)
    if is_there(path) and read_about(path)["photographs"] == library.fingerprint:
        return path, _read(path, path.stat().st_mtime_ns)
    album = make_album(settings, seed, library, progress)
    write_album(path, album)
    return path, album


@lru_cache(maxsize=8)  # some 70 MB each; leaving a client out reads the same album again
def _read(path: Path, changed: int) -> Album:
    return read_album(path)


def make_album(
    settings: WaterbirdSettings, seed: int, library: photos.Library, progress: Callable[[int], None] | None = None
) -> Album:
    photos.pillow()  # missed before anything is drawn, not after
    labels = [torch.tensor([int(bird.waterbird) for bird in birds], dtype=torch.int64) for birds in library.birds]
    land, water = library.backgrounds
    plan = draw_plan(settings, seed, Flock(labels, (len(land), len(water))), "waterbird")
    pairs = [
        (library.birds[client][bird], library.backgrounds[side][background])
        for client, bird, side, background in plan.pictures.tolist()
    ]
    images = photos.make_pictures(pairs, settings.size, progress)
    each = settings.train_per_client + settings.test_per_client
    used = [rows.sum(1).tolist() for case, rows in plan.cases.items() if case.endswith(LEFT_OVER)]
    about = {
        "recipe": settings.recipe(seed),
        "photographs": library.fingerprint,
        "skipped": library.skipped,  # birds of each range without photograph or mask
        "absent": library.absent,  # kinds of background that are not there
        "left over": {
            "there": [len(birds) - each for birds in labels],
            "tested on": used[0] if used else [0] * len(labels),  # as many as asked for, and as find backgrounds
        },
    }
    return Album(images, plan, about)
