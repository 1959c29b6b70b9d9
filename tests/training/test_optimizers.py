"""The optimizers by name take torch's plain steps, in every precision."""

import pytest
import torch
from torch import nn

from torch_halo.training.optimizers import OPTIMIZERS


def steps(optimizer, model, count=5):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=generator).to(p)
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_fused_step_is_the_plain_one(name, dtype):
    torch.manual_seed(0)
    model = nn.Linear(20, 30).to(dtype)
    other = nn.Linear(20, 30).to(dtype)
    other.load_state_dict(model.state_dict())
    settings = OPTIMIZERS[name]()
    ours = settings.build(model.parameters())
    assert ours.defaults["fused"] == (dtype != torch.bfloat16)
    options = {key: value for key, value in ours.defaults.items() if key in ("lr", "momentum", "betas", "weight_decay")}
    plain = type(ours)(other.parameters(), **options, foreach=False)
    torch.testing.assert_close(steps(ours, model), steps(plain, other))
