"""Mixed precision, accumulation and clipping leave the penalty's effect as it is without them."""

import pytest
import torch
from small import assert_same, batches, network, state
from torch.nn import functional as F

import torch_halo as th

OPTIMIZERS = {
    f"{name}{'-fused' if fused else ''}": (lambda p, make=make, fused=fused: make(p, lr=0.01, fused=fused))
    for name, make in (("sgd", torch.optim.SGD), ("adamw", torch.optim.AdamW))
    for fused in (False, True)
}


JOINT = th.HALO(1e-2)


def loop(
    make, *, scaler=None, inf_at=None, clip=None, unscale=False, accumulate=1, count=6, penalty=JOINT, **shrinking
):
    model = network(torch.float32)
    optimizer = make(model.parameters())
    shrink = th.Shrinkage(model, penalty, optimizer, **shrinking)
    for i, (x, y) in enumerate(batches(count, torch.float32)):
        optimizer.zero_grad()
        for part_x, part_y in zip(x.chunk(accumulate), y.chunk(accumulate), strict=True):
            model[1].eval()  # batch statistics would tell the parts from the whole
            loss = F.cross_entropy(model(part_x), part_y) / accumulate
            (loss if scaler is None else scaler.scale(loss)).backward()
        if i == inf_at:
            if scaler is None:
                continue
            model[4].weight.grad[0, 0] = torch.inf
        if scaler is not None and (unscale or clip):
            scaler.unscale_(optimizer)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    return model, shrink


def scaler():
    return torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("inf_at", [None, 3])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_grad_scaler(make, inf_at, unscale):
    plain, shrink = loop(make, inf_at=inf_at, ramp_steps=4)
    scaled, scaled_shrink = loop(make, scaler=scaler(), inf_at=inf_at, unscale=unscale, ramp_steps=4)
    assert_same(scaled, plain, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(scaled_shrink.coefficients, shrink.coefficients, rtol=1e-6, atol=1e-7)


@pytest.mark.filterwarnings("ignore:.* of the weights are zero where")
@pytest.mark.parametrize("inf_at", [None, 3])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize(
    ("penalty", "shrinking"),
    [
        (th.HALO(5e-2, proximal=True), {}),
        (th.HALO(1e-3, solve="profile"), {}),
        (th.HALO(), {"target_sparsity": 0.5, "total_steps": 6}),
    ],
    ids=["joint", "profile", "target"],
)
def test_grad_scaler_and_a_proximal_map(make, inf_at, penalty, shrinking):
    plain, _ = loop(make, inf_at=inf_at, penalty=penalty, **shrinking)
    scaled, _ = loop(make, scaler=scaler(), inf_at=inf_at, penalty=penalty, **shrinking)
    assert_same(scaled, plain, rtol=1e-4, atol=1e-5)
    assert any(bool((p == 0).any()) for p in plain.parameters())
    for one, other in zip(plain.parameters(), scaled.parameters(), strict=True):
        assert torch.equal(one == 0, other == 0)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_skipped_step_moves_nothing(make):
    model = network(torch.float32)
    optimizer = make(model.parameters())
    shrink, scale = th.Shrinkage(model, th.HALO(1e-2), optimizer), scaler()
    x, y = next(batches(1, torch.float32))
    scale.scale(F.cross_entropy(model(x), y)).backward()
    model[0].weight.grad[0] = torch.nan
    before = state(model)
    scale.step(optimizer)
    torch.testing.assert_close(state(model), before, rtol=0, atol=0)
    assert all(torch.equal(lam, torch.ones_like(lam)) for lam in shrink.coefficients.values())
    assert optimizer.param_groups[0]["halo_step_0"] == 0


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_accumulation_acts_once_a_step(make):
    plain, shrink = loop(make)
    accumulated, accumulated_shrink = loop(make, accumulate=4)
    assert_same(accumulated, plain, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(accumulated_shrink.coefficients, shrink.coefficients, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_clipping_does_not_touch_the_penalty(make):
    """With the loss's gradient clipped to nothing, what is left is the penalty's."""
    model, _ = loop(make, clip=1e-12)
    scaled, _ = loop(make, clip=1e-12, scaler=scaler())
    assert_same(scaled, model, rtol=1e-5, atol=1e-7)
    start = network(torch.float32)
    optimizer = make(start.parameters())
    th.Shrinkage(start, th.HALO(1e-2), optimizer)
    for _ in range(6):
        for p in start.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
    torch.testing.assert_close(model[0].weight, start[0].weight, rtol=1e-3, atol=1e-4)
    assert float((model[0].weight - network(torch.float32)[0].weight).detach().abs().mean()) > 1e-4


def test_bfloat16_autocast_trains_float32_weights_with_a_float32_lambda():
    results = []
    for enabled in (False, True):
        model = network(torch.float32)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        shrink = th.Shrinkage(model, th.HALO(1e-2), optimizer)
        for x, y in batches(10, torch.float32):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        results.append(shrink.coefficients)
        assert all(lam.dtype == torch.float32 for lam in shrink.coefficients.values())
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_bfloat16_weights():
    model = network(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    shrink = th.Shrinkage(model, th.HALO(1e-2), optimizer)
    exact = network(torch.float32)
    reference = torch.optim.SGD(exact.parameters(), lr=0.05)
    exact_shrink = th.Shrinkage(exact, th.HALO(1e-2), reference)
    for dtype, one, stepper in ((torch.bfloat16, model, optimizer), (torch.float32, exact, reference)):
        for x, y in batches(10, dtype):
            stepper.zero_grad()
            F.cross_entropy(one(x), y).backward()
            stepper.step()
    for name, lam in shrink.coefficients.items():
        assert lam.dtype == torch.float32
        torch.testing.assert_close(lam, exact_shrink.coefficients[name], rtol=1e-3, atol=1e-4)
