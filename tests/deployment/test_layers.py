"""Sparse layers compute what the dense ones do, for any shape."""

import copy
import io
import random
from itertools import pairwise

import pytest
import torch
from torch import nn

from torch_halo.deployment.layers import CsrLinear, NumbaChain, NumbaConv2d, NumbaLinear, sparse_layer


def cut(layer, share):
    with torch.no_grad():
        layer.weight[torch.rand_like(layer.weight) < share] = 0
    return layer


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def assert_same(found, wanted):
    assert found.shape == wanted.shape
    assert found.is_contiguous()
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Using padding=.same.")
@pytest.mark.parametrize("seed", range(12))
def test_convolutions(seed, threads):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    groups = rng.choice([1, 1, 2, 4])
    channels, outputs = groups * rng.randint(1, 4), groups * rng.randint(1, 5)
    pairs = {key: (rng.randint(low, high), rng.randint(low, high)) for key, low, high in
             [("kernel_size", 1, 4), ("stride", 1, 3), ("dilation", 1, 2), ("padding", 0, 2)]}  # fmt: skip
    if rng.random() < 0.3:
        pairs |= {"padding": rng.choice(["same", "valid"]), "stride": (1, 1)}
    layer = nn.Conv2d(channels, outputs, **pairs, groups=groups, bias=rng.random() < 0.5).requires_grad_(False)
    twin = sparse_layer("numba", cut(layer, rng.choice([0.3, 0.9, 1.0])))
    for count in (1, rng.choice([0, 3, 20, 300])):
        x = torch.randn(count, channels, rng.randint(8, 13), rng.randint(8, 13))
        assert_same(twin(x), layer(x))
    assert_same(
        twin(x[0] if len(x) else x.new_zeros(channels, 9, 9)), layer(x[0] if len(x) else x.new_zeros(channels, 9, 9))
    )


@pytest.mark.parametrize("engine", ["csr", "numba"])
@pytest.mark.parametrize("seed", range(5))
def test_linear_layers(engine, seed, threads):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    layer = nn.Linear(rng.randint(1, 70), rng.randint(1, 70), bias=rng.random() < 0.5).requires_grad_(False)
    twin = sparse_layer(engine, cut(layer, rng.choice([0.3, 0.9, 1.0])))
    for shape in ((), (1,), (7,), (3, 5), (300,), (2, 0)):
        x = torch.randn(*shape, layer.in_features)
        assert_same(twin(x), layer(x))


@pytest.mark.parametrize("seed", range(5))
def test_chains(seed, threads):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    widths = [rng.randint(1, 50) for _ in range(rng.randint(3, 5))]
    layers = [cut(nn.Linear(a, b).requires_grad_(False), 0.8) for a, b in pairwise(widths)]
    relus = [rng.random() < 0.6 for _ in layers]
    dense = nn.Sequential(
        *(m for layer, r in zip(layers, relus, strict=True) for m in ([layer, nn.ReLU()] if r else [layer]))
    )
    twin = NumbaChain(list(zip(layers, relus, strict=True)))
    for shape in ((1,), (), (5,), (8,), (2, 9), (300,), (0,)):
        x = torch.randn(*shape, widths[0])
        assert_same(twin(x), dense(x))
    flat = NumbaChain(list(zip(layers, relus, strict=True)), has_flatten=True)
    for count in (1, 3, 20):
        x = torch.randn(count, 1, widths[0], requires_grad=True).transpose(1, 2)
        assert_same(flat(x), dense(x.flatten(1)).detach())


@pytest.mark.parametrize("count", [1, 5, 40])
def test_a_chain_hides_no_nan(count):
    layers = [(nn.Linear(4, 4).requires_grad_(False), True), (nn.Linear(4, 2).requires_grad_(False), False)]
    assert NumbaChain(layers)(torch.full((count, 4), torch.nan)).isnan().all()


@pytest.mark.parametrize("kind", [CsrLinear, NumbaLinear])
def test_a_layer_can_be_copied_saved_and_loaded(kind):
    layer = cut(nn.Linear(20, 10), 0.8).requires_grad_(False)
    twin, x = kind(layer.weight, layer.bias), torch.randn(4, 20)
    twin(x)
    file = io.BytesIO()
    torch.save(twin, file)
    file.seek(0)
    for other in (copy.deepcopy(twin), torch.load(file, weights_only=False)):
        assert_same(other(x), layer(x))
    other = kind(torch.zeros_like(layer.weight).masked_fill(layer.weight != 0, 1.0), None)
    other(x)
    other.load_state_dict(twin.state_dict())
    assert_same(other(x), layer(x))
    assert "10×20" in repr(twin)


def test_inputs_that_do_not_fit():
    linear, conv = NumbaLinear(torch.eye(4), None), NumbaConv2d(nn.Conv2d(3, 2, 3))
    for layer, x in ((linear, torch.randn(2, 5)), (linear, torch.randn(2, 4).double()), (conv, torch.randn(2, 4, 8, 8)),
                     (CsrLinear(torch.eye(4), None), torch.randn(5))):  # fmt: skip
        with pytest.raises(ValueError, match=r"this layer reads \d channels .* received"):
            layer(x)
    with pytest.raises(ValueError, match=r"images of \(2, 2\) pixels are too small for a kernel of \(3, 3\)"):
        conv(torch.randn(1, 3, 2, 2))


def test_what_has_no_twin():
    assert sparse_layer("csr", nn.Conv2d(1, 1, 3)) is None
    assert sparse_layer("numba", nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")) is None
