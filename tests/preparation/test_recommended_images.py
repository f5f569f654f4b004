"""`recommended` from end to end on own images whose shortcut is no colour: as good as without the shortcut."""

import numpy as np
import pytest

import perinvfl as pf
from perinvfl.data.benchmarks.sources import embedded_digits
from perinvfl.data.federation import Federation

AGREE = (0.95, 0.9, 0.8, 0.7)
IMAGES, TESTS = 500, 250


def digits(shortcut: str, channels: int) -> Federation:
    """Digits 0 to 4 against 5 to 9 at four sites; at test the shortcut is right in one of ten images."""
    source = np.random.default_rng(7)
    known, order, at = embedded_digits("mnist"), source.permutation(60_000), 0
    x, y, client, context = [], [], [], []
    for site, agree in enumerate(AGREE):
        for name, share, count in (("here", agree, IMAGES), ("broken", 0.1, TESTS)):
            chosen, at = order[at : at + count], at + count
            label = (known.labels[chosen].numpy() < 5).astype(int)
            said = np.where(source.random(count) < (share if shortcut != "none" else 0.5), label, 1 - label)
            images = known.images[chosen].numpy()[:, None].repeat(channels, 1) / 255.0
            if shortcut == "tag":
                images[said == 1, :, 11:, 11:] = 1.0
            elif shortcut == "dim":
                images = images * (1 - 0.6 * said[:, None, None, None])
            x.append(images.astype(np.float32))
            y.append(label)
            client += [f"site{site}"] * count
            context += [name] * count
    return pf.from_arrays(
        np.concatenate(x), np.concatenate(y), client=client, context=context, test_contexts=["broken"]
    )


def accuracy(federation: Federation, algorithm: str) -> float:
    session = pf.start(federation, algorithm, rounds=60, model={"hidden": [48]}).run()
    return float(np.mean(list(session.evaluate()["broken"].values())))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("shortcut", ["tag", "dim"])
def test_gray_images_with_a_tag_or_of_another_brightness(shortcut: str, channels: int) -> None:
    plain = accuracy(digits("none", channels), "recommended")
    made = digits(shortcut, channels)
    assert accuracy(made, "recommended") > plain - 0.04 > 0.75
    assert accuracy(made, "fedavg") < plain - 0.2
