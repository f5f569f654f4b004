"""What a federation of birds can be asked for, whatever the pictures are made of."""

from dataclasses import dataclass
from typing import Literal

from perinvfl.core.hyper import check_bounds, hyper
from perinvfl.errors import UserError


def case_name(p: float) -> str:
    return format(p, "g")


@dataclass(frozen=True)
class BirdSettings:
    """What a federation of birds can be asked for, whatever the pictures are made of."""

    p_train: tuple[float, ...] = hyper(
        (0.95, 0.90, 0.85, 0.80),
        "share of each client's training birds that are shown before their own background (water or land), "
        "one entry per client; the nearer to 1, the stronger the shortcut; the default is the paper's",
        symbol="p_train",
        least=0,
        most=1,
    )
    p_test: tuple[float, ...] = hyper(
        (0.1, 0.2, 0.3, 0.4, 0.5),
        "share of birds before their own background in each test context; the lower, the more the shortcut "
        "misleads; the default is the paper's",
        symbol="p_test",
        least=0,
        most=1,
    )
    train_per_client: int = hyper(
        400,
        "training birds per client, including those held out; fewer run faster, but models overfit sooner; "
        "400 is the paper's",
        least=1,
    )
    test_per_client: int = hyper(
        100,
        "test birds per client, the same ones in every test context, so that contexts differ by background "
        "alone; more make scores more certain",
        least=1,
    )
    left_over: int = hyper(
        -1,
        "number of further birds per client to test on, as far as there are backgrounds, which makes scores "
        "more certain; -1 takes all, 0 none",
        least=-1,
    )
    holdout: int = hyper(
        0,
        "training birds per client that are kept out of training, so that settings can be chosen by them; 0 "
        "keeps none out",
        least=0,
    )
    sampling: Literal["natural", "balanced"] = hyper(
        "natural",
        "how training birds are drawn: natural, the default, takes them as they come; balanced takes both "
        "classes equally often, repeating the rarer one, so that it is not neglected",
    )
    size: int = hyper(
        64,
        "side of the square images, in pixels; smaller ones train faster and show less; 64 still shows what bird it is",
        least=8,
        most=4096,
    )
    flip: bool = hyper(
        False, "mirror training images at random, left to right, against overfitting; false leaves them as they are"
    )
    crop: int = hyper(
        0, "shift training images at random by up to this many pixels, against overfitting; 0 shifts none", least=0
    )
    middle: tuple[float, ...] = hyper(
        (),
        "replace what surrounds the middle of each training image by the surroundings of another image of the "
        "client, so that backgrounds do not predict the label: smallest and largest radius of the kept "
        "middle, in half sides; empty keeps images whole",
    )
    leave_out: int = hyper(
        -1,
        "client, counted from 0, to leave out of training; the others' models are tested on its training "
        "birds, which shows how they do at a new client; -1 leaves none out",
        least=-1,
    )

    @property
    def clients(self) -> int:
        return len(self.p_train)

    @property
    def folds_alike(self) -> bool:
        """Whether the data have the same shape whichever client is left out, but for the number of samples."""
        return True

    def check(self, where: str) -> None:
        check_bounds(self, where)
        for key in ("p_train", "p_test"):
            if not getattr(self, key):
                raise UserError(f"{where}.{key} is empty: must have at least one entry.")
        if len({case_name(p) for p in self.p_test}) < len(self.p_test):
            raise UserError(f"{where}.p_test = {self.p_test}: no two test contexts may be the same.")
        if self.leave_out >= self.clients or (self.leave_out >= 0 and self.clients == 1):
            raise UserError(f"{where}.leave_out = {self.leave_out}: must be one of several clients, counted from 0.")
        if self.holdout >= self.train_per_client:
            raise UserError(
                f"{where}.holdout = {self.holdout}: must be less than train_per_client = {self.train_per_client}."
            )
        if self.middle and (len(self.middle) != 2 or not 0 < self.middle[0] <= self.middle[1] <= 1.5):
            raise UserError(f"{where}.middle = {self.middle}: must be two radii, such as [0.45, 0.8], or none.")
        if self.crop >= self.size // 2:
            raise UserError(f"{where}.crop = {self.crop}: must be less than half of size = {self.size}.")
