"""WaterBird from files in the official layout: drawn birds stand in for photographs, all else is the real path."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from perinvfl.cli import call
from perinvfl.data.benchmarks.album import Album, read_album, write_album
from perinvfl.data.benchmarks.birds import LAND, WATER, Plan
from perinvfl.data.benchmarks.drawn import draw_backgrounds, draw_birds
from perinvfl.data.benchmarks.waterbird import WaterbirdSettings, open_album, waterbird_federation
from perinvfl.data.photos import compose, cover, find_photographs, is_waterbird, picture, pixels
from perinvfl.errors import UserError

SPECIES = ("001.Laysan_Albatross", "017.Cardinal", "021.Eastern_Towhee", "059.California_Gull")
EACH = 12  # training photographs of a species
RANGES = ((0, 23), (24, 47))  # two species each


def write_image(pixels: Tensor, path: Path) -> None:
    """From [H, W, channels]."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = pixels.round().to(torch.uint8).contiguous()
    mode = "RGB" if values.shape[-1] == 3 else "L"
    Image.frombytes(mode, (values.shape[1], values.shape[0]), values.numpy().tobytes()).save(path, quality=95)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CUB_200_2011 and places365; every other photograph of a species is of the test split."""
    root = tmp_path_factory.mktemp("photographs")
    cub, places = root / "CUB_200_2011", root / "places365"
    names, number = [], 0
    chance = torch.rand(2 * EACH * len(SPECIES), 8, generator=torch.Generator().manual_seed(0))
    for species in SPECIES:
        for _ in range(2 * EACH):
            y = torch.tensor([WATER if is_waterbird(species, corrected=True) else LAND])
            bird, mask = draw_birds(y, chance[number : number + 1], torch.tensor([0]), 40)
            name = f"{species}/{number:04}.jpg"
            write_image(bird[0, :, :36], cub / "images" / name)  # 36 wide, 40 high
            write_image(255 * mask[0, :, :36], (cub / "segmentations" / name).with_suffix(".png"))
            names.append(name)
            number += 1
    (cub / "images.txt").write_text("".join(f"{i} {name}\n" for i, name in enumerate(names, start=1)))
    (cub / "train_test_split.txt").write_text("".join(f"{i} {i % 2}\n" for i in range(1, number + 1)))
    for side, folder in ((LAND, "b/bamboo_forest"), (LAND, "f/forest/broadleaf"), (WATER, "o/ocean")):
        drawn = draw_backgrounds(torch.full((30,), side), torch.rand(30, 8), 48)
        for place, image in enumerate(drawn):
            write_image(image[:32], places / folder / f"{place:08}.jpg")  # 48 wide, 32 high
    return root


def settings(photographs: Path, albums: Path, **more: object) -> WaterbirdSettings:
    given: dict[str, object] = {
        "ranges": RANGES,
        "p_train": (0.75, 0.5),
        "train_per_client": 12,
        "test_per_client": 4,
        "size": 16,
        "cub": str(photographs / "CUB_200_2011"),
        "places": str(photographs / "places365"),
        "albums": str(albums),
    }
    return WaterbirdSettings(**(given | more))  # type: ignore[arg-type]


def test_the_species_that_are_waterbirds() -> None:
    assert is_waterbird("021.Eastern_Towhee/x.jpg", corrected=False)
    assert not is_waterbird("021.Eastern_Towhee/x.jpg", corrected=True)
    assert is_waterbird("141.Artic_Tern/x.jpg", corrected=True)
    assert is_waterbird("086.Pacific_Loon/x.jpg", corrected=True)
    assert not is_waterbird("017.Cardinal/x_Gull.jpg", corrected=False)  # the species, not the file


def test_only_the_training_split_is_used_and_birds_without_a_mask_are_counted(
    photographs: Path, tmp_path: Path
) -> None:
    cub = tmp_path / "CUB_200_2011"
    shutil.copytree(photographs / "CUB_200_2011", cub)
    masks = sorted((cub / "segmentations" / SPECIES[0]).iterdir())
    masks[0].unlink()  # of the training split
    masks[1].unlink()  # not of it
    (cub / "images" / SPECIES[3] / "0072.jpg").unlink()
    library = find_photographs(cub, photographs / "places365", RANGES, corrected=False)
    assert library.skipped == [1, 1]
    assert [len(birds) for birds in library.birds] == [23, 23]
    assert all(int(bird.photograph.stem) % 2 == 0 for birds in library.birds for bird in birds)
    assert [sum(bird.waterbird for bird in birds) for birds in library.birds] == [11, 23]  # towhees among them
    assert [len(side) for side in library.backgrounds] == [60, 30] and library.absent == ["lake/natural"]


@pytest.mark.parametrize("layout", ["data_large", "train", "beside"])
def test_other_official_layouts_give_the_same(photographs: Path, tmp_path: Path, layout: str) -> None:
    cub, places = tmp_path / "CUB_200_2011", tmp_path / "places"
    shutil.copytree(photographs / "CUB_200_2011", cub)
    if layout == "beside":  # the masks come in an archive of their own
        (cub / "segmentations").rename(tmp_path / "segmentations")
        shutil.copytree(photographs / "places365", places)
    elif layout == "data_large":
        shutil.copytree(photographs / "places365", places / "data_large")
    else:
        for kind, name in (
            ("b/bamboo_forest", "bamboo_forest"),
            ("f/forest/broadleaf", "forest-broadleaf"),
            ("o/ocean", "ocean"),
        ):
            shutil.copytree(photographs / "places365" / kind, places / "train" / name)
    found = find_photographs(cub, places, RANGES, corrected=False)
    usual = find_photographs(photographs / "CUB_200_2011", photographs / "places365", RANGES, corrected=False)
    assert [path.name for side in found.backgrounds for path in side] == [
        path.name for side in usual.backgrounds for path in side
    ]
    assert [len(birds) for birds in found.birds] == [len(birds) for birds in usual.birds]


def test_a_picture_is_composed_at_the_bird_s_size(photographs: Path) -> None:
    bird, mask = torch.full((2, 2, 3), 201.0), torch.tensor([0.0, 1.0, 0.5, 0.25]).view(2, 2, 1)
    composed = compose(bird, mask, torch.full((2, 2, 3), 100.0))
    assert composed[..., 0].tolist() == [[100, 201], [100 + 50, 50 + 75]]  # 100.5 and 50.25 are rounded, to even

    library = find_photographs(photographs / "CUB_200_2011", photographs / "places365", RANGES, corrected=False)
    shown, background = library.birds[0][0], library.backgrounds[1][0]
    small = picture(Image, shown, background, 16)
    # By hand: the whole composition at 36 x 40, then 18 x 18, then its centre.
    photograph = Image.open(shown.photograph).convert("RGB")
    behind = cover(Image, Image.open(background).convert("RGB"), photograph.size)
    cut = pixels(Image.open(shown.mask).convert("L")).double() / 255
    whole = (pixels(photograph) * cut).round() + (pixels(behind) * (1 - cut)).round()
    image = Image.frombytes("RGB", (36, 40), whole.to(torch.uint8).numpy().tobytes())
    centre = image.resize((18, 18), Image.Resampling.BILINEAR).crop((1, 1, 17, 17))
    assert torch.equal(small, pixels(centre).permute(2, 0, 1))


def test_a_background_covers_the_bird_from_its_centre() -> None:
    wide = Image.new("RGB", (60, 20), "red")
    wide.paste("blue", (20, 0, 40, 20))
    assert set(cover(Image, wide, (10, 10)).crop((3, 0, 7, 10)).getcolors()) == {(40, (0, 0, 255))}
    assert cover(Image, wide, (7, 31)).size == (7, 31)


def test_albums_are_lossless_and_damage_is_noticed(photographs: Path, tmp_path: Path) -> None:
    path, album = open_album(settings(photographs, tmp_path), 0)
    noise = torch.randint(0, 256, (7, 3, 9, 9), dtype=torch.uint8)
    for images in (album.images, noise, torch.zeros(600, 3, 8, 8, dtype=torch.uint8)):
        count = len(images)
        places = torch.arange(count)[None]
        plan = Plan(torch.zeros(count, 4, dtype=torch.int64), places[0] % 2, places, places, {"0.5": places > 1})
        plan = album.plan if images is album.images else plan
        write_album(tmp_path / "x.album", Album(images, plan, album.about))
        assert torch.equal(read_album(tmp_path / "x.album").images, images)
    back = read_album(path)
    assert all(torch.equal(a, b) for a, b in zip(back.plan[:-1], album.plan[:-1], strict=True))
    assert all(torch.equal(back.plan.cases[case], rows) for case, rows in album.plan.cases.items())
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="is damaged"):
        waterbird_federation(settings(photographs, tmp_path, cub="", places=""), 0)


def test_the_album_serves_without_photographs_and_only_its_own_recipe(photographs: Path, tmp_path: Path) -> None:
    made = waterbird_federation(settings(photographs, tmp_path), 0)
    files = list(tmp_path.iterdir())
    assert len(files) == 1
    again = waterbird_federation(settings(photographs, tmp_path, cub="", places="", holdout=2, sampling="balanced"), 0)
    assert torch.equal(again.tests["0.1"].x, made.tests["0.1"].x)
    assert list(tmp_path.iterdir()) == files
    for change, seed in (({"size": 20}, 0), ({"corrected": True}, 0), ({"p_train": (0.7, 0.5)}, 0), ({}, 1)):
        with pytest.raises(UserError, match="is not there; `perinvfl data waterbird"):
            waterbird_federation(settings(photographs, tmp_path, cub="", places="", **change), seed)


def test_other_photographs_make_another_album_and_the_same_ones_do_not(photographs: Path, tmp_path: Path) -> None:
    path, _ = open_album(settings(photographs, tmp_path / "albums"), 0)
    written = path.stat().st_mtime_ns
    open_album(settings(photographs, tmp_path / "albums"), 0)
    assert path.stat().st_mtime_ns == written
    shutil.copytree(photographs, tmp_path / "fewer")
    (tmp_path / "fewer" / "CUB_200_2011" / "segmentations" / SPECIES[0] / "0000.png").unlink()
    same_path, album = open_album(settings(tmp_path / "fewer", tmp_path / "albums"), 0)
    assert same_path == path and path.stat().st_mtime_ns > written
    assert album.about["skipped"] == [1, 0]


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        ("CUB_200_2011/images.txt", "images.txt cannot be read; give the folder CUB_200_2011"),
        ("CUB_200_2011/segmentations", "segmentations is not a folder"),
        ("places365/o", "holds no photograph of water; needed are ocean and lake/natural"),
        ("places365", "places365 is not a folder"),
    ],
)
def test_what_is_missing_is_named(photographs: Path, tmp_path: Path, spoil: str, sentence: str) -> None:
    shutil.copytree(photographs, tmp_path / "p")
    place = tmp_path / "p" / spoil
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    with pytest.raises(UserError, match=sentence):
        waterbird_federation(settings(tmp_path / "p", tmp_path / "albums"), 0)


def test_a_file_that_is_no_photograph_is_named(photographs: Path, tmp_path: Path) -> None:
    shutil.copytree(photographs, tmp_path / "p")
    for path in (tmp_path / "p" / "places365" / "o" / "ocean").iterdir():
        path.write_bytes(b"not a photograph")
    with pytest.raises(UserError, match=r"ocean.*cannot be read as a photograph"):
        waterbird_federation(settings(tmp_path / "p", tmp_path / "albums"), 0)


def test_ranges_beyond_the_photographs_say_how_many_are_missing(photographs: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="48 photographs and the index ranges go up to 50: 3 are missing"):
        waterbird_federation(settings(photographs, tmp_path, ranges=((0, 23), (24, 50))), 0)


def test_the_command_makes_albums_and_a_contact_sheet(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["ranges=[[0, 23], [24, 47]]", "p_train=[0.75, 0.5]", "train_per_client=12", "test_per_client=4"]
    arguments = [
        "data",
        "waterbird",
        "--cub",
        str(photographs / "CUB_200_2011"),
        "--places",
        str(photographs / "places365"),
    ]
    arguments += ["--albums", str(tmp_path), "--size", "16", "--seeds", "0,7", "--preview", str(tmp_path / "sheet.png")]
    assert call([*arguments, *(part for key in small for part in ("--set", key))]) == 0
    said = capsys.readouterr().out
    assert len(list(tmp_path.glob("*.album"))) == 2
    assert "skipped, by client: [0, 0]" in said and "lake/natural" in said
    with Image.open(tmp_path / "sheet.png") as sheet:
        colours = sheet.convert("RGB").getcolors(2**20)
        assert sheet.size[0] > 4 * 6 * 64 and colours is not None and len(colours) > 1000
    assert call([*arguments, "--set", "nothing=1"]) == 2
    assert "data.nothing is not a setting" in capsys.readouterr().err
    assert call(["data", "drawn_birds", "--preview", str(tmp_path / "drawn.png")]) == 0
    assert (tmp_path / "drawn.png").stat().st_size > 10_000


def test_notes_tell_what_was_used(photographs: Path, tmp_path: Path) -> None:
    notes = json.loads(json.dumps(waterbird_federation(settings(photographs, tmp_path), 0).notes))
    assert notes["album"]["skipped"] == [0, 0] and notes["album"]["absent"] == ["lake/natural"]
    assert notes["album"]["left over"]["there"] == [8, 8]
