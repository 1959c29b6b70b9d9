"""What a pruned network takes: measured, kept, and shown."""

from functools import partial

import pytest
import torch

import torch_halo as th
from torch_halo.experiments import inference
from torch_halo.experiments.inference import (
    CASES,
    EAGER,
    ONNX,
    OURS,
    measured,
    random_network,
    read_inference,
    size_rows,
    time_rows,
    write_inference,
)
from torch_halo.models import MODELS


def test_a_network_is_measured_and_kept(tmp_path):
    case = CASES["lenet-300-100"]
    model, threads = random_network("lenet-300-100", 0.95), torch.get_num_threads()
    *_, found = measured(case.about, model, case.sample, [1, 8], [1], 3)
    assert torch.get_num_threads() == threads
    assert found.sparsity == pytest.approx(0.95, abs=1e-4)
    assert found.sizes["dense"] == 4 * 266_610
    assert found.sizes["dense"] / found.sizes["compressed"] >= 12
    assert found.sizes["ONNX, sparse"] < found.sizes["ONNX"] / 4
    assert [(each["batch"], each["threads"]) for each in found.times] == [(1, 1), (8, 1)]
    assert all(set(each["seconds"]) == {EAGER, ONNX, OURS} for each in found.times)
    write_inference(tmp_path / "i.json", [found])
    assert read_inference(tmp_path / "i.json") == [found]
    assert size_rows(found)[1] == ["dense", "1,066,440", "1.0×"]
    found.times = [{"batch": 8, "threads": 1, "seconds": {EAGER: 0.004, ONNX: 0.001, OURS: 0.002}}]
    assert time_rows(found)[1] == ["8", "1", "4.000", "1.000", "2.000", "4,000", "2.00×", "0.50×"]


@pytest.mark.parametrize("name", list(CASES))
def test_the_networks_have_the_sparsity(name, monkeypatch):
    monkeypatch.setattr(inference, "WIDTH", 48)
    monkeypatch.setattr(
        inference, "MODELS", {"lenet-300-100": MODELS["lenet-300-100"], "vgg16": partial(MODELS["vgg16"], width=0.125)}
    )
    model = random_network(name, 0.9)
    found = th.sparsity(model)
    assert found.sparsity == pytest.approx(0.9, abs=1e-4)
    assert min(layer.sparsity for layer in found.layers) < 0.9  # small layers keep more
    shape = (CASES[name].shape[0], 48) if name == "transformer" else CASES[name].shape
    assert model(torch.randn(2, *shape)).shape[0] == 2


def test_a_damaged_file(tmp_path):
    (tmp_path / "i.json").write_text('{"networks": [{"colour": 1}]}')
    with pytest.raises(ValueError, match=r"i\.json: expected what `halo bench inference` writes"):
        read_inference(tmp_path / "i.json")
