import gzip
import http.server
import io
import pickle
import struct
import tarfile
import threading
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch

from torch_halo.data import DATASETS, batches, find, load
from torch_halo.data.augmentation import Shifts
from torch_halo.data.download import Remote, fetch
from torch_halo.data.idx import FILES
from torch_halo.files import digest

TRAIN, TEST = 20, 10
md5 = partial(digest, kind="md5")


def idx(magic, array):
    return struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.tobytes()


def random_images(count, *shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def random_labels(count, classes, seed=1):
    return np.random.default_rng(seed).integers(0, classes, count, dtype=np.uint8)


def write_idx(folder, zipped=True, **changed):
    """MNIST's four files, small; `changed` replaces the content of some."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        count = TRAIN if name.startswith("train") else TEST
        content = idx(2051, random_images(count, 28, 28)) if "images" in name else idx(2049, random_labels(count, 10))
        content = changed.get(name.replace("-", "_"), content)
        path = folder / (f"{name}.gz" if zipped else name)
        path.write_bytes(gzip.compress(content) if zipped else content)


def write_cifar(folder, name):
    folder = folder / name
    folder.mkdir(parents=True)
    hundred, binary = "100" in name, name.endswith(("bin", "binary"))
    parts = {"train": TRAIN, "test": TEST} if hundred else {f"data_batch_{i}": TRAIN // 5 for i in range(1, 6)}
    parts = parts if hundred else {**parts, "test_batch": TEST}
    for i, (part, count) in enumerate(parts.items()):
        images, labels = random_images(count, 3072, seed=i), random_labels(count, 100 if hundred else 10, seed=i)
        if binary:
            columns = [labels[:, None] * 0] * hundred + [labels[:, None], images]
            (folder / f"{part}.bin").write_bytes(np.concatenate(columns, 1).tobytes())
        else:
            key = b"fine_labels" if hundred else b"labels"
            content = {b"data": images, key: labels.tolist(), b"batch_label": b"x"}
            (folder / part).write_bytes(pickle.dumps(content, protocol=2))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """The data sets as published have 60,000 images; the tests make 30."""
    for name, source in list(DATASETS.items()):
        if name != "digits":
            monkeypatch.setitem(DATASETS, name, replace(source, counts=(TRAIN, TEST), remotes=()))


WRITERS = {
    "digits": [lambda root: None],
    "mnist": [
        lambda root: write_idx(root / "mnist"),
        lambda root: write_idx(root / "MNIST/raw", zipped=False),
    ],
    "fashion-mnist": [lambda root: write_idx(root / "fashion-mnist")],
    "cifar10": [
        lambda root: write_cifar(root, "cifar-10-batches-bin"),
        lambda root: write_cifar(root, "cifar-10-batches-py"),
    ],
    "cifar100": [
        lambda root: write_cifar(root, "cifar-100-binary"),
        lambda root: write_cifar(root, "cifar-100-python"),
    ],
}


def test_every_data_set_is_written():
    assert list(WRITERS) == list(DATASETS)


@pytest.mark.parametrize(("name", "write"), [(name, write) for name, writers in WRITERS.items() for write in writers])
def test_splits_are_bytes_and_fixed_by_their_seed(name, write, tmp_path):
    write(tmp_path)
    data = load(name, root=tmp_path, validation=0.25)
    train, test = DATASETS[name].counts
    sizes = [len(split.labels) for split in (data.train, data.validation, data.test)]
    assert sizes == [train - round(train / 4), round(train / 4), test]
    for split in (data.train, data.validation, data.test):
        assert split.inputs.dtype == torch.uint8
        assert split.labels.dtype == torch.int64
        assert tuple(split.inputs.shape[1:]) == data.input_shape
        assert 0 <= int(split.labels.min()) <= int(split.labels.max()) < data.classes
    again, other = load(name, root=tmp_path, validation=0.25), load(name, root=tmp_path, validation=0.25, seed=1)
    assert torch.equal(data.train.inputs, again.train.inputs)
    assert not torch.equal(data.validation.inputs, other.validation.inputs)
    assert torch.equal(data.test.inputs, other.test.inputs)
    whole = load(name, root=tmp_path)
    assert len(whole.validation.labels) == 0
    assert whole.train.inputs.long().sum() == data.train.inputs.long().sum() + data.validation.inputs.long().sum()
    inputs = data.normalise(data.train.inputs)
    assert inputs.dtype == torch.float32
    torch.testing.assert_close(inputs, data.normalised().train.inputs)


@pytest.mark.parametrize(
    "kinds", [("cifar-10-batches-bin", "cifar-10-batches-py"), ("cifar-100-binary", "cifar-100-python")]
)
def test_both_versions_of_cifar_are_the_same(kinds, tmp_path):
    found = []
    for kind in kinds:
        write_cifar(tmp_path / kind, kind)
        found.append(load("cifar100" if "100" in kind else "cifar10", root=tmp_path / kind))
    torch.testing.assert_close(found[0].train, found[1].train, rtol=0, atol=0)
    torch.testing.assert_close(found[0].test, found[1].test, rtol=0, atol=0)


def test_the_data_directory_can_be_in_the_environment(tmp_path, monkeypatch):
    write_idx(tmp_path / "mnist")
    monkeypatch.setenv("HALO_DATA", str(tmp_path))
    assert len(load("mnist").test.labels) == TEST
    assert find("mnist", tmp_path) == tmp_path / "mnist"
    assert find("cifar10", tmp_path) is None
    assert len(load("mnist", root=tmp_path / "mnist").test.labels) == TEST
    with pytest.raises(FileNotFoundError):  # MNIST's files are no Fashion-MNIST
        load("fashion-mnist", root=tmp_path / "mnist", download=False)
    for name in ("train", "test"):
        (tmp_path / "cifar-100-python" / name).mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="the files of cifar100 are not in"):
        load("cifar100", root=tmp_path, download=False)


def test_label_noise_flips_to_other_classes_and_remembers():
    clean, noisy = load("digits"), load("digits", label_noise=0.4)
    changed = clean.train.labels != noisy.train.labels
    assert torch.equal(changed, noisy.flipped)
    assert float(changed.float().mean()) == pytest.approx(0.4, abs=0.04)
    assert torch.equal(clean.test.labels, noisy.test.labels)
    assert torch.equal(load("digits", label_noise=0.4).train.labels, noisy.train.labels)
    assert not torch.equal(load("digits", label_noise=0.4, seed=1).train.labels, noisy.train.labels)
    assert bool(load("digits", label_noise=1.0).flipped.all())
    assert len(set(noisy.train.labels[noisy.flipped].tolist())) == 10


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_label_noise_is_a_probability(value):
    with pytest.raises(ValueError, match="label_noise must be"):
        load("digits", label_noise=value)


def test_batches_depend_on_seed_and_epoch_alone():
    data = load("digits")

    def epoch(**options):
        return list(batches(data, data.train, 100, **{"seed": 0, "epoch": 0, **options}))

    first = epoch()
    assert [len(labels) for _, labels, _ in first] == [100] * 14 + [38]
    torch.testing.assert_close(first, epoch(), rtol=0, atol=0)
    torch.testing.assert_close(first[9:], epoch(start=9), rtol=0, atol=0)
    assert not torch.equal(first[0][2], epoch(epoch=1)[0][2])
    assert not torch.equal(first[0][2], epoch(seed=1)[0][2])
    seen = torch.cat([index for _, _, index in first])
    assert torch.equal(seen.sort().values, torch.arange(1438))
    parts = [epoch(rank=rank, world=2) for rank in range(2)]
    assert torch.equal(torch.cat([parts[0][3][2], parts[1][3][2]]).sort().values, first[3][2].sort().values)


def test_processes_share_batches_equally():
    data = load("digits")  # 1,438 images
    for world in (2, 4, 7):
        size = 10 * world
        parts = [list(batches(data, data.train, size, seed=0, epoch=0, rank=r, world=world)) for r in range(world)]
        lengths = [[len(labels) for _, labels, _ in part] for part in parts]
        assert all(one == lengths[0] for one in lengths)
        assert min(lengths[0]) > 0
        assert sum(lengths[0]) == 1438 // world


@pytest.mark.parametrize("options", [{"size": 0}, {"size": 9, "world": 2}, {"rank": 2, "world": 2}, {"start": -1}])
def test_batches_that_cannot_be_shared(options):
    data = load("digits")
    options = {"size": 10, "seed": 0, "epoch": 0, **options}
    with pytest.raises(ValueError, match="batches need a size that the processes can share"):
        next(batches(data, data.train, **options))


def test_shifts_and_flips_by_hand():
    image = torch.arange(1, 26, dtype=torch.uint8).view(1, 1, 5, 5).repeat(3, 2, 1, 1)
    flips, shifts = torch.tensor([False, True, False]), torch.tensor([[4, 4], [4, 4], [6, 3]])
    found = Shifts(flips, shifts, (2, 5, 5), torch.device("cpu"))
    out = found.apply(image, slice(0, 3))
    assert torch.equal(found.apply(image[:2], slice(1, 3)), out[1:])
    assert torch.equal(out[0], image[0])
    assert torch.equal(out[1], image[0].flip(2))
    expected = torch.zeros(5, 5, dtype=torch.uint8)
    expected[:3, 1:] = image[0, 0, 2:, :4]
    assert torch.equal(out[2, 0], expected)
    assert torch.equal(out[2, 1], expected)


def test_cifar_is_augmented_anew_each_epoch(tmp_path):
    write_cifar(tmp_path, "cifar-10-batches-bin")
    data = load("cifar10", root=tmp_path)
    first, second = (next(batches(data, data.train, TRAIN, seed=0, epoch=e)) for e in range(2))
    order = [first[2].argsort(), second[2].argsort()]
    assert not torch.equal(first[0][order[0]], second[0][order[1]])
    assert first[0].shape == (TRAIN, 3, 32, 32)


BROKEN = {
    "truncated": (idx(2051, random_images(TRAIN, 28, 28))[:-5], r"expected 15696 bytes for 20×28×28; found 15691"),
    "swapped": (idx(2049, random_labels(TRAIN, 10)), r"expected idx images \(magic number 2051\); found idx labels"),
    "corrupt": (b"nonsense" * 4, r"expected idx images \(magic number 2051\); found magic number 1852796531"),
    "empty": (b"", r"found 0 bytes, less than the header"),
    "count": (idx(2051, random_images(TRAIN - 1, 28, 28)), r"labels-idx1-ubyte.gz: expected 19 labels"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_broken_idx_files(how, tmp_path):
    content, message = BROKEN[how]
    write_idx(tmp_path / "mnist", train_images_idx3_ubyte=content)
    with pytest.raises(ValueError, match=rf"train-.*{message}"):
        load("mnist", root=tmp_path)


def test_a_gzip_file_cut_short(tmp_path):
    write_idx(tmp_path / "mnist")
    path = tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"t10k-images-idx3-ubyte\.gz: expected a whole gzip file"):
        load("mnist", root=tmp_path)


def test_labels_out_of_range_and_other_counts(tmp_path):
    write_idx(tmp_path / "mnist", t10k_labels_idx1_ubyte=idx(2049, np.full(TEST, 10, np.uint8)))
    with pytest.raises(ValueError, match="expected labels from 0 to 9; found 10 to 10"):
        load("mnist", root=tmp_path)
    write_cifar(tmp_path, "cifar-100-binary")
    path = tmp_path / "cifar-100-binary" / "test.bin"
    path.write_bytes(path.read_bytes()[: 3074 * 4])
    with pytest.raises(ValueError, match="expected 10 test images of cifar100; found 4"):
        load("cifar100", root=tmp_path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"test\.bin: expected rows of 3074 bytes; found 5000 bytes"):
        load("cifar100", root=tmp_path)


class Trick:
    def __init__(self, *parts):
        self.parts = parts

    def __reduce__(self):
        return self.parts


class BadDtype:
    """An array of a dtype whose own state is nonsense: numpy would believe it and crash."""

    def __reduce__(self):
        return np.ndarray, ((1, 3072), Trick(np.dtype, ("u1", False, True), (3, "|", None, -1, -1, 0)))


class Hostile:
    def __reduce__(self):
        return exec, ("raise SystemExit('executed')",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(Hostile()), r"it asks for builtins\.exec, which no CIFAR file needs"),
        (pickle.dumps({b"data": Hostile(), b"labels": []}, protocol=2), r"__builtin__\.exec|builtins\.exec"),
        (pickle.dumps({b"data": np.zeros((4, 3072)), b"labels": [0] * 4}), r"expected an array of bytes; found one of"),
        (pickle.dumps(Trick(np.ndarray, ((1, 3072), "u1"))), r"not callable"),
        (pickle.dumps({b"data": BadDtype(), b"labels": [1]}, protocol=2), r"not callable|do not fit"),
        (pickle.dumps([1]), r"expected a dictionary with 'data' and 'labels'; found list"),
        (pickle.dumps({b"data": np.zeros((4, 7), np.uint8), b"labels": [0] * 4}), r"found uint8 \(4, 7\)"),
        (pickle.dumps({b"data": np.zeros((4, 3072), np.uint8), b"labels": [0] * 3}), r"expected a list of 4 labels"),
        (b"\x80\x02", r"something else or a damaged one"),
    ],
)
def test_cifars_pickles_are_not_trusted(content, message, tmp_path):
    write_cifar(tmp_path, "cifar-10-batches-py")
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(content)
    with pytest.raises(ValueError, match=rf"data_batch_3: .*({message})"):
        load("cifar10", root=tmp_path)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"the files of mnist are not in .*mnist or .*MNIST/raw: expected train-"
    ):
        load("mnist", root=tmp_path, download=False)
    with pytest.raises(ValueError, match="unknown data set 'minst'; known: digits, mnist, fashion-mnist, cifar10"):
        load("minst")


class Handler(http.server.BaseHTTPRequestHandler):
    """A server that knows ranges, and breaks off when told to."""

    files: ClassVar[dict] = {}
    break_after: ClassVar[int | None] = None
    asked: ClassVar[list] = []

    def do_GET(self):
        content = self.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        span = self.headers.get("Range")
        type(self).asked.append(span)
        first = int(span.split("=")[1].rstrip("-")) if span else 0
        if first >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if span else 200)
        self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        rest = content[first:]
        self.wfile.write(rest if self.break_after is None else rest[: self.break_after])

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    Handler.files, Handler.break_after, Handler.asked = {}, None, []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_downloads_resume_are_checked_and_appear_whole(server, tmp_path):
    content = random_images(3000, 7).tobytes()
    Handler.files["/file.gz"] = content
    (tmp_path / "right").write_bytes(content)
    remote, told = Remote(f"{server}/file.gz", md5(tmp_path / "right")), []
    Handler.break_after = 10_000
    with pytest.raises((ConnectionError, OSError), match=r"10000 of 21000"):
        fetch(remote, tmp_path / "data", lambda *what: told.append(what))
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["file.gz.part"]
    Handler.break_after = None
    path = fetch(remote, tmp_path / "data", lambda *what: told.append(what))
    assert path.read_bytes() == content
    assert Handler.asked == [None, "bytes=10000-"]
    assert told[-1] == ("file.gz", 21000, 21000)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["file.gz"]


def test_a_wrong_checksum_leaves_nothing(server, tmp_path):
    Handler.files["/file.gz"] = b"other"
    with pytest.raises(ValueError, match=r"expected md5 00; found .*thrown away"):
        fetch(Remote(f"{server}/file.gz", "00"), tmp_path, lambda *what: None)
    assert not list(tmp_path.iterdir())


def test_two_processes_fetch_once(server, tmp_path, monkeypatch):
    write_idx(tmp_path / "published")
    Handler.files = {f"/{n}.gz": (tmp_path / "published" / f"{n}.gz").read_bytes() for n in FILES}
    remotes = tuple(Remote(f"{server}/{n}.gz", md5(tmp_path / "published" / f"{n}.gz")) for n in FILES)
    monkeypatch.setitem(DATASETS, "mnist", replace(DATASETS["mnist"], remotes=remotes))
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(load("mnist", root=tmp_path / "fetched"))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert len(Handler.asked) == 4


def test_a_damaged_archive_is_fetched_anew(server, tmp_path, monkeypatch):
    archive = tmp_path / "fetched" / "cifar-100-binary.tar.gz"
    archive.parent.mkdir()
    archive.write_bytes(b"\x1f\x8b\x08\x00truncated")
    Handler.files["/cifar-100-binary.tar.gz"] = b"\x1f\x8b\x08\x00also truncated"
    (tmp_path / "published").write_bytes(Handler.files["/cifar-100-binary.tar.gz"])
    remote = Remote(f"{server}/cifar-100-binary.tar.gz", md5(tmp_path / "published"))
    monkeypatch.setitem(DATASETS, "cifar100", replace(DATASETS["cifar100"], remotes=(remote,)))
    with pytest.raises(ValueError, match=r"cifar-100-binary\.tar\.gz: expected a whole tar file; found a damaged one"):
        load("cifar100", root=tmp_path / "fetched")
    assert len(Handler.asked) == 1


def test_data_sets_are_fetched(server, tmp_path, monkeypatch):
    write_idx(tmp_path / "published")
    write_cifar(tmp_path / "published", "cifar-100-binary")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        tar.add(tmp_path / "published" / "cifar-100-binary", "cifar-100-binary")
    Handler.files = {f"/{n}.gz": (tmp_path / "published" / f"{n}.gz").read_bytes() for n in FILES}
    Handler.files["/cifar-100-binary.tar.gz"] = archive.getvalue()
    (tmp_path / "archive").write_bytes(archive.getvalue())
    idx_remotes = tuple(Remote(f"{server}/{n}.gz", md5(tmp_path / "published" / f"{n}.gz")) for n in FILES)
    cifar_remotes = (Remote(f"{server}/cifar-100-binary.tar.gz", md5(tmp_path / "archive")),)
    monkeypatch.setitem(DATASETS, "mnist", replace(DATASETS["mnist"], remotes=idx_remotes))
    monkeypatch.setitem(DATASETS, "cifar100", replace(DATASETS["cifar100"], remotes=cifar_remotes))
    root = tmp_path / "fetched"
    assert len(load("mnist", root=root).train.labels) == TRAIN
    assert len(load("cifar100", root=root).train.labels) == TRAIN
    asked = len(Handler.asked)
    load("mnist", root=root)
    assert len(Handler.asked) == asked
    Handler.files = {}
    with pytest.raises(ConnectionError, match=r"the files of mnist are not in .*expected train-images.*cannot be had"):
        load("mnist", root=tmp_path / "elsewhere")
