"""Exported models compute the same elsewhere, or are not written."""

import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import torch_halo as th
from torch_halo.deployment import export as room
from torch_halo.deployment.comparison import Difference
from torch_halo.deployment.export import export
from torch_halo.models import MODELS


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    found = MODELS["lenet-5"]((1, 28, 28), 10).eval()
    th.prune_(found, sparsity=0.95, scope="layer")
    return found


def run(path, x):
    session = onnxruntime.InferenceSession(path)
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])


@pytest.mark.parametrize("sparse", [False, True])
def test_onnx_for_any_batch(model, sparse, tmp_path):
    found = export(model, torch.randn(2, 1, 28, 28), tmp_path / "m.onnx", sparse=sparse)
    x = torch.randn(5, 1, 28, 28)
    torch.testing.assert_close(run(tmp_path / "m.onnx", x), model(x).detach(), rtol=1e-4, atol=1e-5)
    assert found.any_batch
    assert found.bytes == (tmp_path / "m.onnx").stat().st_size
    proto = onnx.load(tmp_path / "m.onnx")
    assert bool(proto.graph.sparse_initializer) == sparse
    if sparse:
        assert found.bytes < 0.3 * 4 * 61_706
        assert "without its zeros, any batch size" in str(found)


def test_a_torch_program(model, tmp_path):
    found = export(model, torch.randn(2, 1, 28, 28), tmp_path / "m.pt2", "torch")
    x = torch.randn(5, 1, 28, 28)
    torch.testing.assert_close(torch.export.load(tmp_path / "m.pt2").module()(x), model(x))
    assert found.difference == 0


class Fixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x):
        return self.inner(x.view(2, 4))


def test_a_batch_size_that_is_fixed(tmp_path):
    found = export(Fixed(), torch.randn(2, 4), tmp_path / "f.onnx")
    assert not found.any_batch
    assert "the example's batch size only" in str(found)


def test_nothing_is_left_of_a_wrong_one(model, tmp_path, monkeypatch):
    x = torch.randn(2, 1, 28, 28)
    monkeypatch.setattr(room, "difference", lambda found, wanted: Difference(1.0, 1e-4))
    with pytest.raises(ValueError, match=r"outputs differ by 1, where 0\.0001 is allowed; nothing was written"):
        export(model, x, tmp_path / "m.pt2", "torch")
    with pytest.raises(ValueError, match="sparse is for ONNX files"):
        export(model, x, tmp_path / "m.pt2", "torch", sparse=True)
    with pytest.raises(ValueError, match="unknown format 'onx'; known: onnx, torch; did you mean onnx"):
        export(model, x, tmp_path / "m.onnx", "onx")
    with pytest.raises(ValueError, match=r"a file of format onnx must end in \.onnx; received .*m\.txt"):
        export(model, x, tmp_path / "m.txt")
    assert not list(tmp_path.iterdir())
