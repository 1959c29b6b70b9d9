"""What is removed did nothing: outputs stay, for any network and any pattern of zeros."""

import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_halo as th
from torch_halo.deployment.regions import Branchless
from torch_halo.models import MODELS


def random_norms(model):
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.normal_(module.running_mean, 0, 0.3)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.normal_(module.weight, 1, 0.3)
            nn.init.normal_(module.bias, 0, 0.5)
    return model.eval()


def kill(model, share):
    """Rows and columns of zeros."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)) and module.weight.ndim > 1:
                module.weight[torch.rand(len(module.weight)) < share] = 0
                module.weight[:, torch.rand(module.weight.shape[1]) < share / 2] = 0


def removed(model, x, other=None):
    """The model without its dead structure, after it was seen to compute the same, on another batch too."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = th.remove_dead(model, x)
    with torch.no_grad():
        for inputs in (x, torch.randn(5, *x.shape[1:]) if other is None else other):
            torch.testing.assert_close(found.model(inputs), model(inputs), rtol=1e-4, atol=1e-5)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert set(found.model.state_dict()) <= set(before) | {
        n for n in found.model.state_dict() if ".bias" in n or n.endswith(".value")
    }
    return found


@pytest.mark.parametrize("share", [0.3, 0.9])
@pytest.mark.parametrize("name", list(MODELS))
def test_the_networks(name, share):
    torch.manual_seed(0)
    shape = (3, 32, 32) if name in ("vgg16", "resnet") else (1, 28, 28)
    options = {"vgg16": {"width": 0.25}, "resnet": {"depth": 20}}.get(name, {})
    model = random_norms(MODELS[name](shape, 10, **options))
    kill(model, share)
    found = removed(model, torch.randn(2, *shape))
    assert found.parameters[1] < (0.7 if share < 0.5 else 0.1) * found.parameters[0]
    assert found.flops[1] < found.flops[0]
    assert not found.left_alone
    again = th.remove_dead(found.model, torch.randn(2, *shape))
    assert again.parameters[0] == again.parameters[1]  # nothing is left to go


def test_neurons_are_counted():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        model[0].weight[:2] = 0  # constant: their biases go on
        model[2].weight[:, 5] = 0  # not read
        model[0].bias[0] = 2.0
    bias = (
        model[2].bias.detach()
        + 2.0 * model[2].weight.detach()[:, 0]
        + F.relu(model[0].bias[1].detach()) * model[2].weight.detach()[:, 1]
    )
    found = removed(model, torch.randn(4, 6))
    assert found.layers == {"0": ((8, 6), (5, 6)), "2": ((3, 8), (3, 5))}
    assert found.parameters == (83, 53)
    torch.testing.assert_close(found.model[2].bias, bias)
    assert isinstance(found.model, nn.Sequential)
    assert "0: 8×6 -> 5×6" in str(found)


def test_a_constant_behind_padding_has_a_spokesman():
    torch.manual_seed(0)
    model = random_norms(nn.Sequential(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3, padding=1)))
    with torch.no_grad():
        model[0].weight[:4] = 0
        model[1].bias[:4] = torch.tensor([5.0, 6.0, 7.0, -50.0])  # three constants that are not zero, one that is
    found = removed(model, torch.randn(2, 2, 9, 9), torch.randn(3, 2, 12, 7))
    assert found.layers == {"0": ((6, 2, 3, 3), (3, 2, 3, 3)), "3": ((4, 6, 3, 3), (4, 3, 3, 3))}


def test_dead_branches_become_constants():
    torch.manual_seed(0)
    model = random_norms(MODELS["resnet"]((3, 32, 32), 10, depth=20))
    nn.init.zeros_(model.layer1[1].conv2.weight)
    nn.init.zeros_(model.layer2[1].bn2.weight)  # constant as well
    nn.init.zeros_(model.layer2[1].conv2.weight)
    nn.init.zeros_(model.layer3[2].conv2.weight)
    for part in (model.layer3[2].bn2.running_mean, model.layer3[2].bn2.bias):
        nn.init.zeros_(part)  # not even a constant is left
    found = removed(model, torch.randn(2, 3, 32, 32))
    assert found.gone == tuple(f"{block}.conv{i}" for block in ("layer1.1", "layer2.1", "layer3.2") for i in (1, 2))
    assert sum(isinstance(module, Branchless) for module in found.model.modules()) == 3
    assert "layer1.1.conv1: gone" in str(found)


class Branching(nn.Module):
    """A bit of all that is known, and something that is not."""

    def __init__(self, seed):
        super().__init__()
        rng = random.Random(seed)
        width = rng.randint(3, 8)
        self.act = rng.choice([F.relu, torch.tanh, F.gelu, torch.sigmoid, lambda x: F.leaky_relu(x, 0.2)])
        self.a = nn.Conv2d(3, width, 3, stride=rng.choice([1, 2]), padding=rng.choice([0, 1]))
        self.norm = nn.BatchNorm2d(width)
        self.b = nn.Conv2d(width, width, 3, padding=1, bias=rng.random() < 0.5)
        self.c = nn.Conv2d(width, width, 1)
        self.pool = rng.choice([nn.MaxPool2d(2), nn.AvgPool2d(3, 2, padding=1), nn.AdaptiveAvgPool2d(3), nn.Identity()])
        self.mode = rng.choice(["add", "cat", "mul", "mean", "flatten", "norm"])
        self.group = nn.GroupNorm(1, width)
        self.d = nn.LazyLinear(7)
        self.e = nn.Linear(7, 4)

    def forward(self, x):
        x = self.act(self.norm(self.a(x)))
        y = self.b(x)
        if self.mode == "add":
            y = y + self.c(x)
        elif self.mode == "cat":
            y = torch.cat([y, self.c(x)], 1)
        elif self.mode == "mul":
            y = y * torch.sigmoid(self.c(x))
        elif self.mode == "norm":
            y = self.group(y)
        y = self.pool(self.act(y))
        y = y.mean((2, 3)) if self.mode == "mean" else y.view(x.size(0), -1)
        return self.e(F.dropout(self.act(self.d(y)), 0.5, self.training))


@pytest.mark.parametrize("seed", range(24))
def test_fuzz(seed):
    torch.manual_seed(seed)
    model, x = Branching(seed), torch.randn(2, 3, 10, 10)
    with torch.no_grad():
        model.eval()(x)
    random_norms(model)
    kill(model, random.Random(seed).choice([0.2, 0.5, 0.8, 1.0]))
    found = removed(model, x, torch.randn(5, 3, 10, 10))
    assert found.parameters[1] < found.parameters[0]
    assert found.flops[1] <= found.flops[0]
    assert not found.left_alone


class Stubborn(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6))

    def forward(self, x):
        return self.inner(x) if x.sum() > -1e9 else x


def test_what_cannot_be_traced_is_named_and_its_parts_are_tried():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 6), Stubborn()).eval()
    kill(model, 0.5)
    found = removed(model, torch.randn(3, 6))
    assert list(found.left_alone) == ["3"]
    assert "control flow" in found.left_alone["3"]
    assert {"0", "2", "3.inner.0", "3.inner.2"} <= set(found.layers)
    whole = Stubborn().eval()
    kill(whole, 0.5)
    found = removed(whole, torch.randn(3, 6))
    assert list(found.left_alone) == ["the model"]
    assert set(found.layers) == {"inner.0", "inner.2"}


def test_a_transformers_neurons():
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 32, batch_first=True), 2, enable_nested_tensor=False
    )
    kill(encoder.eval(), 0.4)
    found = removed(encoder, torch.randn(2, 5, 8), torch.randn(3, 4, 8))
    assert all(found.layers[f"layers.{i}.linear1"][1][0] < 24 for i in (0, 1))


def test_shared_weights_stay():
    torch.manual_seed(0)
    shared = nn.Linear(6, 6)
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), shared, nn.ReLU(), shared).eval()
    kill(model, 0.5)
    assert "2" not in removed(model, torch.randn(3, 6)).layers
    tied = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2)).eval()
    tied[2].weight = tied[0].weight
    kill(tied, 0.5)
    removed(tied, torch.randn(3, 6))


class Same(nn.Conv2d):
    """Pads by itself, which fx cannot trace."""

    def forward(self, x):
        if x.shape[-1] % 2:
            x = F.pad(x, (0, 1, 0, 1))
        return F.conv2d(x, self.weight, self.bias, self.stride)


class Net(nn.Module):
    def __init__(self, forward, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.rule = forward

    def forward(self, x):
        return self.rule(self, x)


def clamped(net, x):
    h = net.e(x)
    h.clamp_(-3, 3)
    return net.o(h + net.b(h))


def unseen(net, x):
    h = net.e(x)
    if isinstance(x, torch.Tensor):
        h = h.clamp(max=50)
    return net.o(h + net.b(h))


def overwritten(net, x):
    h = net.e(x)
    return net.o(F.relu(h + net.b(h), inplace=True) + h)


def preactivated(net, x):
    h = net.e(x)
    return net.o(h + net.b(F.relu(h, inplace=True)))


def written_down(net, x):
    return net.o(F.relu(net.e(x)).view(-1, 8))


def own_size(net, x):
    h = F.relu(net.e(x))
    return net.o(h) / h.shape[1]


def functional(net, x):
    return net.o(F.relu(F.linear(F.relu(net.e(x)), net.b.weight.t()))) + net.b(x[:, :8]).mean()


def hidden(net, x):
    """What it returns is no tensor that fx or pytree would see."""
    return {"scores": net.o(F.relu(net.e(x))), "more": [net.b(x[:, :8])]}


@pytest.mark.parametrize(
    "rule", [clamped, unseen, overwritten, preactivated, written_down, own_size, functional], ids=lambda f: f.__name__
)
def test_forwards_that_mislead(rule):
    for seed in range(5):
        torch.manual_seed(seed)
        net = Net(rule, e=nn.Linear(8, 8), b=nn.Linear(8, 8), o=nn.Linear(8, 3)).eval()
        with torch.no_grad():
            net.b.weight.zero_()
            net.e.weight[:4] = 0
            if seed % 2:
                net.b.bias.zero_()
        x = torch.randn(4, 8)
        found = th.remove_dead(net, x).model
        with torch.no_grad():
            for other in (x, 1000 * x, -x, x + 20, torch.randn(2, 8)):
                torch.testing.assert_close(found(other.clone()), net(other.clone()), rtol=1e-3, atol=1e-3)


def test_a_subclass_is_not_its_base():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), Same(8, 4, 2, 2)).eval()
    with torch.no_grad():
        model[0].weight[:4] = 0
    found = removed(model, torch.randn(2, 3, 8, 8), torch.randn(2, 3, 9, 9))
    assert list(found.left_alone) == ["2"]


def test_a_branch_of_tokens():
    torch.manual_seed(0)

    def rule(net, x):
        h = net.e(x)
        return net.o(h + net.b(F.gelu(net.a(h))))

    net = Net(rule, e=nn.Linear(6, 6), a=nn.Linear(6, 12), b=nn.Linear(12, 6), o=nn.Linear(6, 3)).eval()
    nn.init.zeros_(net.b.weight)
    found = removed(net, torch.randn(2, 5, 6), torch.randn(3, 4, 6))
    assert found.gone == ("a", "b")
    assert isinstance(found.model, Net)


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.o = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))

    def forward(self, x, mask):
        return self.o(x if mask is None else x * mask)


def test_parts_that_are_called_with_other_things_are_named():
    torch.manual_seed(0)
    net = Masked().eval()
    kill(net, 0.5)
    found = th.remove_dead(net, (torch.randn(2, 4), None))
    assert found.left_alone == {"the model": "it is called with other things than tensors, or by keyword"}
    assert "o.0" in found.layers


def test_a_mapping_of_outputs_is_compared():
    torch.manual_seed(0)
    net = Net(hidden, e=nn.Linear(8, 8), b=nn.Linear(8, 8), o=nn.Linear(8, 3)).eval()
    kill(net, 0.5)
    x = torch.randn(4, 8)
    found = th.remove_dead(net, x).model
    torch.testing.assert_close(found(x)["scores"], net(x)["scores"])
    with pytest.raises(ValueError, match="the model returns no tensor that could be compared"):
        th.remove_dead(Net(lambda net, x: 3), x)


def test_bad_input():
    with pytest.raises(TypeError, match="the example must be a tensor, or a tuple of a model's arguments"):
        th.remove_dead(nn.Linear(2, 2), [1, 2])
