"""Small networks, data and loops that several tests share."""

import torch
from torch import nn
from torch.nn import functional as F


def network(dtype=torch.float64, seed=0):
    """A convolution and a linear layer, with batch norm and biases in between."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 3))
    return net.to(dtype)


def batches(count, dtype=torch.float64, seed=1, size=16):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        x = torch.randn(size, 2, 4, 4, generator=generator, dtype=torch.float64).to(dtype)
        yield x, torch.randint(0, 3, (size,), generator=generator)


def sgd(model, lr=0.1, **options):
    return torch.optim.SGD(model.parameters(), lr=lr, **{"momentum": 0.9, "weight_decay": 1e-3, **options})


def adamw(model, lr=1e-3, **options):
    return torch.optim.AdamW(model.parameters(), lr=lr, **options)


def train(model, optimizer, data, extra=None, scheduler=None):
    for x, y in data:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        (loss if extra is None else loss + extra()).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(model, other, **tolerance):
    torch.testing.assert_close(
        dict(model.state_dict()), dict(other.state_dict()), **{"rtol": 0, "atol": 0, **tolerance}
    )
