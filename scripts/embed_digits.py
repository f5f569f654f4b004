"""Make the image files inside the package from the official training files of MNIST and Fashion-MNIST.

    python scripts/embed_digits.py --mnist DIR --fashion DIR

Each DIR holds train-images-idx3-ubyte and train-labels-idx1-ubyte, plain or gzipped. The same input gives the same
output bytes (for one version of zlib; the unpacked content is the same for every version).
"""

import argparse
import hashlib
import zlib
from pathlib import Path

from perinvfl.data.benchmarks.sources import EMBEDDED, official_paths, pack, read_idx, read_unzipped
from perinvfl.errors import UserError

# Of the unzipped idx files (images, labels): gzip headers differ between mirrors, contents do not.
OFFICIAL_MD5 = {
    "mnist": ("6bbc9ace898e44ae57da46a324031adb", "a25bea736e30d166cdddb491f175f624"),
    "fashion": ("f4a8712d7a061bf5bd6d2ca38dc4d50a", "9018921c3c673c538a1fc5bad174d6f9"),
}

# A seventh larger than xz, and unpacked five times as fast: at the start of every run.
LEVEL, WINDOW, MEMORY = 9, 15, 9


def embed(name: str, root: Path) -> None:
    paths = official_paths(root)
    for path, expected in zip(paths, OFFICIAL_MD5[name], strict=True):
        found = hashlib.md5(read_unzipped(path)).hexdigest()
        if found != expected:
            raise UserError(f"{path}: the unzipped content has md5 {found}, the official {name} file {expected}.")
    content = pack(*map(read_idx, paths))
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, WINDOW, MEMORY, zlib.Z_FILTERED)
    packed = packer.compress(content) + packer.flush()
    target = EMBEDDED / f"{name}14.z"
    target.write_bytes(packed)
    print(f"{target.name}: {len(packed)} bytes")
    print(f"  sha256 of the file    {hashlib.sha256(packed).hexdigest()}")
    print(f"  sha256 of its content {hashlib.sha256(content).hexdigest()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, required=True, help="folder of the official MNIST training files")
    parser.add_argument("--fashion", type=Path, required=True, help="folder of the official Fashion-MNIST files")
    roots = parser.parse_args()
    try:
        embed("mnist", roots.mnist)
        embed("fashion", roots.fashion)
    except UserError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
