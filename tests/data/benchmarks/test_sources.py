import gzip
import hashlib
import struct
from pathlib import Path

import pytest
import torch
from torch import Tensor

from perinvfl.data.benchmarks import sources
from perinvfl.data.benchmarks.sources import embedded_digits, official_digits, read_idx
from perinvfl.errors import UserError


def idx_bytes(tensor: Tensor, code: int = 0x08) -> bytes:
    content = bytearray(tensor.numel())
    torch.frombuffer(content, dtype=torch.uint8).copy_(tensor.flatten())
    return bytes([0, 0, code, tensor.ndim]) + struct.pack(f">{tensor.ndim}I", *tensor.shape) + bytes(content)


SMALL = torch.arange(24, dtype=torch.uint8).view(2, 3, 4)


def test_reads_plain_and_gzipped_idx_files_whatever_their_names(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(idx_bytes(SMALL))
    (tmp_path / "zipped").write_bytes(gzip.compress(idx_bytes(SMALL), mtime=0))
    for name in ("plain", "zipped"):
        read = read_idx(tmp_path / name)
        assert read.dtype == torch.uint8
        assert torch.equal(read, SMALL)
    assert torch.equal(read_idx(str(tmp_path / "plain")), SMALL)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read"),
        (b"", "not an idx file"),
        (b"\x89PNG and more", "not an idx file"),
        (b"\0\0\x08\0", "not an idx file"),
        (idx_bytes(SMALL, code=0x0D), "type code is 0x0d"),
        (idx_bytes(SMALL)[:9], "inside its header"),
        (idx_bytes(SMALL)[:-1], "is truncated: its header asks for 24 bytes of data, it holds 23"),
        (idx_bytes(SMALL) + b"x", "is too long"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 0]), "is empty"),
        (gzip.compress(idx_bytes(SMALL), mtime=0)[:-10], "damaged or truncated gzip"),
        (b"\x1f\x8b" + bytes(20), "damaged or truncated gzip"),
    ],
)
def test_says_what_is_wrong_with_a_file(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=says) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["mnist", "fashion"])
def test_embedded_images_are_all_there(name: sources.DigitName) -> None:
    images, labels = embedded_digits(name)
    assert images.shape == (60_000, 14, 14)
    assert labels.shape == (60_000,)
    assert images.dtype == labels.dtype == torch.uint8
    counts = labels.bincount(minlength=10).tolist()
    # Known of the official files: MNIST begins 5 0 4 1 9 2 and has 5 923 zeros; Fashion-MNIST is balanced.
    assert counts == [6000] * 10 if name == "fashion" else (counts[0], counts[1]) == (5923, 6742)
    assert labels[:6].tolist() == ([9, 0, 0, 3, 0, 2] if name == "fashion" else [5, 0, 4, 1, 9, 2])
    assert images.amax() == 255
    content = sources.pack(images.repeat_interleave(2, 1).repeat_interleave(2, 2), labels)
    assert hashlib.sha256(content).hexdigest() == sources.CONTENT_SHA256[name]


def test_embedded_images_are_read_once() -> None:
    assert embedded_digits("mnist") is embedded_digits("mnist")


def test_a_damaged_or_missing_embedded_file_asks_for_a_reinstall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = (sources.EMBEDDED / "mnist14.z").read_bytes()
    monkeypatch.setattr(sources, "EMBEDDED", tmp_path)
    load = embedded_digits.__wrapped__
    with pytest.raises(UserError, match="missing: reinstall"):
        load("mnist")
    (tmp_path / "mnist14.z").write_bytes(whole[:-1] + b"!")
    with pytest.raises(UserError, match="damaged: reinstall"):
        load("mnist")
    (tmp_path / "mnist14.z").write_bytes(whole)
    assert torch.equal(load("mnist").images, embedded_digits("mnist").images)


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    for load in (embedded_digits, lambda name: official_digits(tmp_path, name)):
        with pytest.raises(UserError, match="must be one of mnist, fashion"):
            load("cifar")


def write_official(root: Path, name: sources.DigitName, images_name: str, labels_name: str) -> None:
    """Files of the official layout whose every second pixel is the embedded image, and whose others are noise."""
    digits = embedded_digits(name)
    images = torch.randint(256, (60_000, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images[:, ::2, ::2] = digits.images
    for path, tensor in ((root / images_name, images), (root / labels_name, digits.labels)):
        raw = idx_bytes(tensor)
        path.write_bytes(gzip.compress(raw, 1, mtime=0) if path.suffix == ".gz" else raw)


@pytest.mark.parametrize(
    ("images_name", "labels_name"),
    [
        ("train-images-idx3-ubyte", "train-labels-idx1-ubyte.gz"),
        ("train-images.idx3-ubyte", "train-labels.idx1-ubyte"),
    ],
)
def test_official_files_give_the_embedded_tensors(tmp_path: Path, images_name: str, labels_name: str) -> None:
    write_official(tmp_path, "mnist", images_name, labels_name)
    official, embedded = official_digits(tmp_path, "mnist"), embedded_digits("mnist")
    assert torch.equal(official.images, embedded.images)
    assert torch.equal(official.labels, embedded.labels)


def test_official_files_of_the_wrong_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no file train-images-idx3-ubyte"):
        official_digits(tmp_path, "mnist")
    write_official(tmp_path, "fashion", "train-images-idx3-ubyte", "train-labels-idx1-ubyte")
    with pytest.raises(UserError, match="holds Fashion-MNIST: it must hold the official training files of MNIST"):
        official_digits(tmp_path, "mnist")

    labels = tmp_path / "train-labels-idx1-ubyte"
    raw = labels.read_bytes()
    labels.write_bytes(raw[:-1] + bytes([(raw[-1] + 1) % 10]))
    with pytest.raises(UserError, match="holds altered files"):
        official_digits(tmp_path, "fashion")
    labels.write_bytes(idx_bytes(embedded_digits("fashion").labels[:10_000]))
    with pytest.raises(UserError, match=r"holds the shape \[10000\]: .* \[60000\]"):
        official_digits(tmp_path, "fashion")
