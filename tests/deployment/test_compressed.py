"""Compressed files: to the bit, whatever is in them; and nothing is believed that is wrong."""

import json
import random
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from torch import nn

import torch_halo as th
from torch_halo.deployment.compressed import _checksum, is_compressed, read_compressed
from torch_halo.deployment.compressed import load_file as load_any
from torch_halo.deployment.packing import DTYPES
from torch_halo.models import MODELS

KINDS = list(DTYPES.values())


class Bag(nn.Module):
    """Any tensors, as buffers."""

    def __init__(self, tensors):
        super().__init__()
        for i, tensor in enumerate(tensors):
            self.register_buffer(f"t{i}", tensor)


def random_tensor(rng, kind):
    shape = [rng.choice([0, 1, 2, 3, 7, 8, 9, 31]) for _ in range(rng.randint(0, 3))]
    size = int(np.prod(shape)) if shape else 1
    width = torch.empty(0, dtype=kind).element_size()
    numbers = np.random.default_rng(rng.randint(0, 10**9))
    raw = numbers.integers(0, 256, (size, width), dtype=np.uint8)
    if kind is torch.bool:
        raw %= 2
    raw[numbers.random(size) < rng.choice([0, 0.5, 0.9, 0.99, 1])] = 0
    return torch.from_numpy(raw).reshape(-1).view(kind).reshape(shape)


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


@pytest.mark.parametrize("seed", range(20))
def test_any_tensors_come_back_to_the_bit(seed, tmp_path):
    rng = random.Random(seed)
    bag = Bag([random_tensor(rng, rng.choice(KINDS)) for _ in range(rng.randint(1, 6))])
    path = tmp_path / "bag.safetensors"
    found = th.compress(bag, path, zstd=rng.random() < 0.7)
    again = read_compressed(path)
    assert list(again) == list(bag.state_dict())
    for name, tensor in bag.state_dict().items():
        assert again[name].dtype == tensor.dtype
        assert again[name].shape == tensor.shape
        assert torch.equal(bits(again[name]), bits(tensor))
    assert found.bytes == path.stat().st_size
    assert found.dense == sum(t.numel() * t.element_size() for t in bag.state_dict().values())


def test_signed_zeros_nans_and_denormals_stay(tmp_path):
    values = torch.tensor([0.0, -0.0, float("nan"), float("-inf"), 1e-45, 0.0, 0.0, 0.0])
    th.compress(Bag([values.repeat(9)]), tmp_path / "x.safetensors")
    again = read_compressed(tmp_path / "x.safetensors")["t0"]
    assert torch.equal(bits(again), bits(values.repeat(9)))


@pytest.mark.parametrize("name", list(MODELS))
def test_the_networks_at_95_percent(name, tmp_path):
    shape = (3, 32, 32) if name in ("vgg16", "resnet") else (1, 28, 28)
    options = {"vgg16": {"width": 0.5}}.get(name, {})
    model, again = (MODELS[name](shape, 10, **options) for _ in range(2))
    th.prune_(model, sparsity=0.95, scope="layer")
    found = th.compress(model, tmp_path / "m.safetensors")
    assert th.load_compressed(tmp_path / "m.safetensors", again) is again
    for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert found.times >= 12
    assert f"{found.times:.1f} times smaller" in str(found)
    half = th.compress(model, tmp_path / "h.safetensors", values="float16")
    assert half.bytes < 0.75 * found.bytes


def test_attention_is_compressed_too(tmp_path):
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(96, 4, 192, batch_first=True), 2)
    th.prune_(encoder, sparsity=0.95, scope="layer")
    assert th.compress(encoder, tmp_path / "e.safetensors").times >= 12


def test_what_is_not_sparse_is_stored_dense(tmp_path):
    torch.manual_seed(0)
    found = th.compress(nn.Linear(100, 100), tmp_path / "d.safetensors")
    about = json.loads(safe_open(tmp_path / "d.safetensors", "np").metadata()["tensors"])
    assert {entry["stored"] for entry in about.values()} == {"dense"}
    assert found.times > 1


def test_a_shared_weight_is_stored_once(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(50, 50)
            self.b = nn.Linear(50, 50)
            self.b.weight = self.a.weight

    model, again = Tied(), Tied()
    found = th.compress(model, tmp_path / "t.safetensors", zstd=False)
    assert found.bytes < 1.2 * 50 * 50 * 4
    th.load_compressed(tmp_path / "t.safetensors", again)
    assert torch.equal(again.b.weight, model.a.weight)


def test_rounded_values(tmp_path):
    torch.manual_seed(0)
    model, again = nn.Linear(40, 30), nn.Linear(40, 30)
    th.compress(model, tmp_path / "r.safetensors", values="bfloat16")
    th.load_compressed(tmp_path / "r.safetensors", again)
    assert torch.equal(again.weight, model.weight.bfloat16().float())
    assert torch.equal(again.bias, model.bias)  # not a weight: exact
    model.weight.data[0, 0] = 1e6
    with pytest.raises(ValueError, match=r"weight has a weight of size 1e\+06, beyond torch.float16; use bfloat16"):
        th.compress(model, tmp_path / "r.safetensors", values="float16")
    with pytest.raises(ValueError, match="unknown kind of values 'float8'"):
        th.compress(model, tmp_path / "r.safetensors", values="float8")


@pytest.fixture
def written(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.Linear(30, 4))
    th.prune_(model, sparsity=0.9, scope="layer")
    path = tmp_path / "m.safetensors"
    th.compress(model, path, metadata={"who": "me"})
    return model, path


def test_no_flipped_bit_and_no_cut_goes_unnoticed(written):
    model, path = written
    whole = path.read_bytes()
    rng = random.Random(0)
    accepted = 0
    for trial in range(400):
        damaged = bytearray(whole)
        if trial % 4 == 0:
            damaged = damaged[: rng.randrange(len(whole))]
        else:
            damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with suppress(ValueError):
            found = read_compressed(path)
            accepted += 1
            assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())
    assert accepted < 5  # a bit of the header that means nothing


def test_a_model_is_untouched_by_a_bad_file(written):
    model, path = written
    before = {name: value.clone() for name, value in model.state_dict().items()}
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"the file is damaged: its content does not have its checksum"):
        th.load_compressed(path, model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def forged(path, **changes):
    """The file with other metadata, and a checksum that fits."""
    parts = load_file(path)
    about = {**safe_open(path, "np").metadata(), **changes}
    del about["checksum"]
    checksum = _checksum({name: part.tobytes() for name, part in parts.items()}, about)
    save_file(parts, path, {**about, "checksum": checksum})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "2"}, "its format is version 2; this torch-halo reads version 1"),
        ({"format": "other"}, "expected a file that torch_halo.compress wrote"),
        ({"codec": "lzma"}, "what it says of its tensors cannot be read"),
        ({"tensors": "{"}, "m.safetensors: "),
        ({"tensors": '{"x": {"dtype": "float32"}}'}, "a tensor's description is damaged"),
        ({"tensors": '{"x": {"dtype": "f", "shape": [1], "stored": "dense", "values": "f"}}'}, "unknown dtype 'f'"),
        ({"tensors": '{"x": {"dtype": "float32", "shape": [-1], "stored": "dense", "values": "float32"}}'}, "no shape"),
        ({"tensors": '{"x": {"dtype": "float32", "shape": [2], "stored": "rle"}}'}, "no way of storing a tensor"),
        ({"tensors": '{"x": {"dtype": "float32", "shape": [2], "stored": "as", "other": "y"}}'}, "cannot be read"),
    ],
)
def test_forged_files(written, changes, message):
    _, path = written
    forged(path, **changes)
    with pytest.raises(ValueError, match=message):
        read_compressed(path)


def test_a_wrong_size_is_seen_before_memory_is_taken(written):
    _, path = written
    tensors = json.loads(safe_open(path, "np").metadata()["tensors"])
    tensors["0.weight"]["shape"] = [2**40]
    forged(path, tensors=json.dumps(tensors))
    with pytest.raises(ValueError, match="its zstd frame says"):
        read_compressed(path)


def test_models_that_do_not_fit(written):
    _, path = written
    with pytest.raises(ValueError, match=r"it lacks 3.weight, 3.bias; it has besides nothing"):
        th.load_compressed(
            path, nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.Linear(30, 4), nn.Linear(4, 1))
        )
    with pytest.raises(ValueError, match=r"0.weight has shape \(30, 20\), not \(30, 21\)"):
        th.load_compressed(path, nn.Sequential(nn.Linear(21, 30), nn.BatchNorm1d(30), nn.Linear(30, 4)))


def test_other_files(written, tmp_path):
    model, path = written
    with pytest.raises(FileNotFoundError, match="nowhere: no such file"):
        read_compressed(Path("nowhere"))
    (tmp_path / "text.safetensors").write_text("hello")
    with pytest.raises(ValueError, match="expected a compressed file; found a damaged one"):
        read_compressed(tmp_path / "text.safetensors")
    save_file({"x": np.zeros(3)}, tmp_path / "plain.safetensors")
    assert not is_compressed(tmp_path / "plain.safetensors")
    assert is_compressed(path)
    with pytest.raises(ValueError, match="it does not say so"):
        read_compressed(tmp_path / "plain.safetensors")
    assert load_any(nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.Linear(30, 4)), path)
    assert safe_open(path, "np").metadata()["who"] == "me"
    with pytest.raises(OSError, match="not a writable directory"):
        th.compress(model, tmp_path / "no" / "m.safetensors")


@pytest.mark.parametrize("kind", [torch.float16, torch.int64])
def test_another_dtype_is_refused(kind, tmp_path):
    th.compress(Bag([torch.tensor([1.7, 0])]), tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match=f"t0 is of torch.float32, not {kind}"):
        th.load_compressed(tmp_path / "x.safetensors", Bag([torch.zeros(2, dtype=kind)]))


def test_two_tensors_do_not_become_one(tmp_path):
    shared = torch.zeros(3)
    th.compress(Bag([torch.ones(3), torch.zeros(3)]), tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="t1 and t0 are one there, and two in the file"):
        th.load_compressed(tmp_path / "x.safetensors", Bag([shared, shared]))


def test_what_cannot_be_compressed(tmp_path):
    with pytest.raises(ValueError, match=r"t0 is of torch.uint16; known: float32"):
        th.compress(Bag([torch.zeros(2, dtype=torch.uint16)]), tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="metadata: checksum is the format's own"):
        th.compress(nn.Linear(2, 2), tmp_path / "x.safetensors", metadata={"checksum": "x"})
    conjugate = torch.randn(3, dtype=torch.complex64).conj()
    th.compress(Bag([conjugate]), tmp_path / "c.safetensors")
    assert torch.equal(read_compressed(tmp_path / "c.safetensors")["t0"], conjugate)
    (tmp_path / "c.safetensors").unlink()
    model = nn.Linear(2, 2)
    model.weight = nn.Parameter(torch.eye(2).to_sparse())
    with pytest.raises(ValueError, match="weight is sharded, sparse or on the meta device"):
        th.compress(model, tmp_path / "x.safetensors")
    assert not list(tmp_path.iterdir())
