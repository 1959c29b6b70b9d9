"""The data sets: where their files are, how they are read, where they come from."""

import http.client
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from torch_halo.checks import Table, extra
from torch_halo.data.cifar import CIFAR10, CIFAR100, Layout, has_cifar, read_cifar
from torch_halo.data.download import Progress, Remote, fetch, unpack
from torch_halo.data.idx import FILES, has_idx, read_idx
from torch_halo.data.sets import DataSet, Split, cut, with_noise
from torch_halo.files import locked

Read = Callable[[Path], tuple[Split, Split]]


@dataclass(frozen=True)
class Source:
    """A data set before it is read.

    `readers` maps folders below the data directory to a function that tells whether the files are
    there and one that reads them; `remotes` are fetched into the first of the folders, or unpacked
    beside it.
    """

    classes: int
    counts: tuple[int, int]  # images to train on and to test on
    mean: tuple[float, ...]
    std: tuple[float, ...]
    is_augmented: bool
    readers: Mapping[str, tuple[Callable[[Path], bool], Read]]
    files: str = ""
    remotes: tuple[Remote, ...] = ()


def load(
    name: str,
    *,
    root: str | Path | None = None,
    validation: float = 0.0,
    label_noise: float = 0.0,
    seed: int = 0,
    download: bool = True,
    progress: Progress = lambda name, done, total: None,
) -> DataSet:
    """A data set from the files under `root` (or $HALO_DATA), fetched from their publisher if they are not there.

    `validation` is the share of the training set that is held out, at random by `seed`, and
    `label_noise` the probability with which a training label becomes another.
    """
    source = DATASETS[name]
    train, test = _read(name, source, data_root(root), download, progress)
    train, held_out = cut(train, validation, seed)
    train, flipped = with_noise(train, label_noise, source.classes, seed)
    shape = source.classes, source.mean, source.std, source.is_augmented
    return DataSet(name, train, held_out, test, *shape, flipped)


def data_root(root: str | Path | None) -> Path:
    """The data directory: as given, or $HALO_DATA, or a folder in the user's cache."""
    return Path(root or os.environ.get("HALO_DATA") or "~/.cache/torch-halo").expanduser()


def find(name: str, root: Path) -> Path | None:
    """The folder with the data set's files, if they are there."""
    found = _reader(DATASETS[name], root)
    return found[0] if found else None


def get(name: str, root: Path, progress: Progress) -> None:
    """Fetch a data set's files from their publisher."""
    source = DATASETS[name]
    folder = root / next(iter(source.readers))
    root.mkdir(parents=True, exist_ok=True)
    with locked(root):  # two processes of one launch ask for the same files
        for remote in source.remotes if _reader(source, root) is None else ():
            try:
                if remote.name.endswith(".tar.gz"):
                    unpack(fetch(remote, root, progress), root)
                else:
                    fetch(remote, folder, progress)
            except (OSError, http.client.HTTPException) as error:
                raise ConnectionError(f"{_missing(name, source, root)}; {remote.url} cannot be had: {error}") from error


def _read(name: str, source: Source, root: Path, download: bool, progress: Progress) -> tuple[Split, Split]:
    found = _reader(source, root)
    if found is None and download:
        get(name, root, progress)
        found = _reader(source, root)
    if found is None:
        raise FileNotFoundError(_missing(name, source, root))
    folder, read = found
    train, test = read(folder)
    for split, what, expected in ((train, "training", source.counts[0]), (test, "test", source.counts[1])):
        if len(split.labels) != expected:
            raise ValueError(f"{folder}: expected {expected} {what} images of {name}; found {len(split.labels)}")
        low, high = (int(label) for label in split.labels.aminmax()) if expected else (0, 0)
        if low < 0 or high >= source.classes:
            raise ValueError(f"{folder}: expected labels from 0 to {source.classes - 1}; found {low} to {high}")
    return train, test


def _reader(source: Source, root: Path) -> tuple[Path, Read] | None:
    for folder, (is_there, read) in source.readers.items():
        # The directory given may be the folder itself, if its name says so: MNIST's and
        # Fashion-MNIST's files look alike.
        for place in (root / folder, *([root] if folder and root.match(folder) else [])):
            if is_there(place):
                return place, read
    return None


def _missing(name: str, source: Source, root: Path) -> str:
    folders = " or ".join(str(root / folder) for folder in source.readers)
    return f"the files of {name} are not in {folders}: expected {source.files} (--data-dir or $HALO_DATA names {root})"


def _digits(folder: Path) -> tuple[Split, Split]:
    """scikit-learn's digits, of which a fifth, always the same, is kept for testing."""
    with extra("demo", "the data set of digits"):
        from sklearn.datasets import load_digits
    found = load_digits()
    images = torch.from_numpy(found.images).to(torch.uint8)[:, None]
    return cut(Split(images, torch.from_numpy(found.target).long()), 0.2, seed=0)


def _idx(*folders: str) -> dict[str, tuple[Callable[[Path], bool], Read]]:
    return dict.fromkeys(folders, (has_idx, read_idx))


def _cifar(layouts: Mapping[str, Layout]) -> dict[str, tuple[Callable[[Path], bool], Read]]:
    return {
        folder: (
            lambda place, layout=layout: has_cifar(place, layout),  # type: ignore[misc]
            lambda place, layout=layout: read_cifar(place, layout),  # type: ignore[misc]
        )
        for folder, layout in layouts.items()
    }


def _remotes(base: str, *sums: str) -> tuple[Remote, ...]:
    return tuple(Remote(f"{base}/{name}.gz", md5) for name, md5 in zip(FILES, sums, strict=True))


def _bytes(*shares: float) -> tuple[float, ...]:
    return tuple(255 * share for share in shares)


_IDX_FILES = ", ".join(FILES) + " (each plain or .gz)"
_CIFAR10_FILES = "data_batch_1 to 5 and test_batch (with .bin in the binary version)"

DATASETS: Table[Source] = Table(
    "data set",
    {
        "digits": Source(10, (1438, 359), (4.9,), (6.0,), False, {"": (lambda place: True, _digits)}),
        "mnist": Source(
            10,
            (60_000, 10_000),
            _bytes(0.1307),
            _bytes(0.3081),
            False,
            _idx("mnist", "MNIST/raw"),
            _IDX_FILES,
            _remotes(
                "https://ossci-datasets.s3.amazonaws.com/mnist",
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
        ),
        "fashion-mnist": Source(
            10,
            (60_000, 10_000),
            _bytes(0.2860),
            _bytes(0.3530),
            False,
            _idx("fashion-mnist", "FashionMNIST/raw"),
            _IDX_FILES,
            _remotes(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
        ),
        "cifar10": Source(
            10,
            (50_000, 10_000),
            _bytes(0.4914, 0.4822, 0.4465),
            _bytes(0.2470, 0.2435, 0.2616),
            True,
            _cifar(CIFAR10),
            _CIFAR10_FILES,
            (Remote("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),),
        ),
        "cifar100": Source(
            100,
            (50_000, 10_000),
            _bytes(0.5071, 0.4865, 0.4409),
            _bytes(0.2673, 0.2564, 0.2762),
            True,
            _cifar(CIFAR100),
            "train and test (with .bin in the binary version)",
            (Remote("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),),
        ),
    },
)
