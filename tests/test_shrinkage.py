import copy
import math

import pytest
import torch
from examples_of_penalties import PENALTIES, named
from small import adamw, assert_same, batches, network, sgd, state, train
from torch import nn
from torch.nn import functional as F

import torch_halo as th
from torch_halo import coefficients as coefficients_module
from torch_halo.coefficients import FLOOR
from torch_halo.selection import select_weights

NAMES = ["0.weight", "4.weight"]


def fit(penalty, model):
    """The examples' strengths are for shapes of a few numbers; networks need weaker ones."""
    if isinstance(penalty, th.WeightedL1):
        torch.manual_seed(5)
        return th.WeightedL1(0.01, {name: torch.rand_like(p) for name, p in model.named_parameters()})
    if isinstance(penalty, th.Grouped):
        return th.Grouped(fit(penalty.inner, model), penalty.groups)
    fields = {name: getattr(penalty, name) for name in penalty.__dataclass_fields__ if name != "axes"}
    return type(penalty)(**{**fields, "xi": penalty.xi / 30})


def through_autograd(model, penalty, optimizer, rate, decay):
    """The same loss as a user would write it: λ as parameters with an optimizer of their own."""
    weights = select_weights(model)
    bound = [penalty.on(weight) for weight in weights]
    lam = [one.start(weight.parameter.detach()) for one, weight in zip(bound, weights, strict=True)]
    if penalty.shared:
        lam = [lam[0]] * len(lam)
    leaves = list({id(part): part for parts in lam for part in parts}.values()) if penalty.learned else []
    for leaf in leaves:
        leaf.requires_grad_()
    second = torch.optim.SGD(leaves or [torch.zeros(1)], lr=1.0, momentum=0.9, weight_decay=decay)

    def omega():
        cost = sum(o.cost(w.parameter, *part) for o, w, part in zip(bound, weights, lam, strict=True))
        priors = [o.prior(*part) for o, part in zip(bound, lam, strict=True)]
        return cost + (priors[0] if penalty.shared else sum(priors))

    def step(x, y):
        optimizer.zero_grad()
        second.zero_grad()
        (F.cross_entropy(model(x), y) + omega()).backward()
        second.param_groups[0]["lr"] = rate()
        optimizer.step()
        second.step()
        with torch.no_grad():
            for leaf in leaves:
                leaf.clamp_(min=FLOOR)

    return step, lam, omega


@pytest.mark.parametrize("make", [sgd, adamw])
@pytest.mark.parametrize("penalty", PENALTIES, ids=named)
def test_the_same_as_the_loss_through_autograd(penalty, make):
    ours, theirs = network(), network()
    penalty = fit(penalty, ours)
    optimizer, reference = make(ours), make(theirs)
    schedules = [torch.optim.lr_scheduler.StepLR(o, 4, 0.3) for o in (optimizer, reference)]
    shrink = th.Shrinkage(ours, penalty, optimizer)
    start, decay = (0.1, 1e-3) if make is sgd else (0.1, 5e-4)
    first = reference.param_groups[0]["lr"]
    rate = lambda: start * reference.param_groups[0]["lr"] / first  # noqa: E731
    step, lam, omega = through_autograd(theirs, penalty, reference, rate, decay)
    for x, y in batches(10):
        train(ours, optimizer, [(x, y)])
        step(x, y)
        for schedule in schedules:
            schedule.step()
    assert_same(ours, theirs, rtol=1e-9, atol=1e-12)
    names = NAMES if lam[0] else []
    for name, parts in zip(names, lam, strict=False):
        got = [shrink.coefficients[key] for key in (name, f"{name}:inner")[: len(parts)]]
        torch.testing.assert_close(got, [part.detach() for part in parts], rtol=1e-9, atol=1e-12)
        assert not penalty.learned or not torch.equal(got[0], torch.ones_like(got[0]))
    torch.testing.assert_close(shrink.value(), omega().detach(), rtol=1e-9, atol=0)


def test_large_weights_are_worked_on_in_pieces(monkeypatch):
    results = []
    for piece in (2**18, 7, 64):
        monkeypatch.setattr(coefficients_module, "PIECE", piece)
        model = network()
        optimizer = sgd(model)
        shrink = th.Shrinkage(model, th.HALO(1e-3), optimizer)
        train(model, optimizer, batches(4))
        results.append((state(model), {k: v.clone() for k, v in shrink.coefficients.items()}))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    torch.testing.assert_close(results[2], results[0], rtol=0, atol=0)


def test_channels_last_weights():
    plain, last = network(), network().to(memory_format=torch.channels_last)
    for model in (plain, last):
        optimizer = sgd(model)
        th.Shrinkage(model, th.HALO(1e-3), optimizer)
        train(model, optimizer, batches(5))
    assert_same(last, plain, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_trained_at_fixed_weights_lambda_reaches_its_optimum(k):
    model = nn.Linear(6, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.05, -0.2, 0.5, 1.0, -2.0, 4.0]]))
    optimizer = torch.optim.SGD([{"params": model.parameters(), "lr": 0.05}])
    shrink = th.Shrinkage(model, th.HALO(0.3, 0.2, th.InversePower(k)), optimizer, coefficient_weight_decay=0.0)
    fixed = model.weight.detach().clone()
    for _ in range(4000):
        model.weight.grad = torch.zeros_like(model.weight)
        optimizer.step()
        with torch.no_grad():
            model.weight.copy_(fixed)
    best = (k * 0.3 * fixed.abs() / 0.2) ** (1 / (k + 1))
    torch.testing.assert_close(shrink.coefficients["weight"], best, rtol=1e-8, atol=0)


def test_lambda_stays_at_the_floor_or_above():
    model = network()
    optimizer = sgd(model)
    shrink = th.Shrinkage(model, th.HALO(0.0, 0.5), optimizer, coefficient_lr=1.0)
    train(model, optimizer, batches(20))
    lowest = min(float(lam.min()) for lam in shrink.coefficients.values())
    assert lowest == FLOOR


@pytest.mark.parametrize("make", [sgd, adamw])
def test_a_step_with_learning_rate_0_changes_nothing(make):
    model = network()
    optimizer = make(model)
    shrink = th.Shrinkage(model, th.HALO(1e-3), optimizer)
    train(model, optimizer, batches(3))
    before, group = state(model), optimizer.param_groups[0]
    lam = {name: part.clone() for name, part in shrink.coefficients.items()}
    group["lr"] = 0.0
    x, y = next(batches(1, seed=9))
    F.cross_entropy(model(x), y).backward()
    grad = model[0].weight.grad.clone()
    optimizer.step()
    assert torch.equal(model[0].weight.grad, grad)
    assert torch.equal(model[0].weight, before["0.weight"])
    torch.testing.assert_close(shrink.coefficients, lam, rtol=0, atol=0)
    assert group["halo_step_0"] == 3


def test_a_weight_without_gradient_is_skipped():
    model = network()
    optimizer = sgd(model)
    shrink = th.Shrinkage(model, th.HALO(1e-3), optimizer)
    before = model[0].weight.detach().clone()
    model[4].weight.grad = torch.zeros_like(model[4].weight)
    optimizer.step()
    assert torch.equal(model[0].weight, before)
    assert torch.equal(shrink.coefficients["0.weight"], torch.ones_like(before))
    assert not torch.equal(shrink.coefficients["4.weight"], torch.ones_like(model[4].weight))


def penalty_gradients(steps, **options):
    model = nn.Linear(3, 2, bias=False, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9, maximize=options.pop("maximize", False))
    th.Shrinkage(model, th.L1(0.5), optimizer, **options)
    seen = []
    for _ in range(steps):
        model.weight.grad = torch.zeros_like(model.weight)
        optimizer.step()
        seen.append(float((model.weight.grad * model.weight.detach().sign()).mean()))
    return seen


def test_the_strength_ramps_up_and_stops():
    assert penalty_gradients(7, ramp_steps=4, until_step=6) == pytest.approx([0, 0.125, 0.25, 0.375, 0.5, 0.5, 0])
    assert penalty_gradients(2) == pytest.approx([0.5, 0.5])


def test_the_ramp_scales_the_whole_penalty():
    model = nn.Linear(3, 2, bias=False, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shrink = th.Shrinkage(model, th.HALO(0.5), optimizer, ramp_steps=4, coefficient_weight_decay=0.0)
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()
    assert torch.equal(shrink.coefficients["weight"], torch.ones_like(model.weight))
    w = model.weight.detach().clone()
    optimizer.step()
    torch.testing.assert_close(shrink.coefficients["weight"], 1 - 0.1 / 4 * (-2 * 0.5 * w.abs() + 0.5))


def test_under_maximize_the_penalty_is_subtracted():
    assert penalty_gradients(1, maximize=True) == pytest.approx([-0.5])


def test_rates_follow_the_group():
    model = nn.Linear(2, 2, bias=False, dtype=torch.float64)

    def rate(optimizer, lr_now=None, **options):
        with torch.no_grad():
            model.weight.zero_()
        shrink = th.Shrinkage(model, th.HALO(0.0, 1.0), optimizer, **options)
        if lr_now is not None:
            optimizer.param_groups[0]["lr"] = lr_now
        model.weight.grad = torch.zeros_like(model.weight)
        optimizer.step()
        shrink.detach()
        return float(1 - shrink.coefficients["weight"][0, 0])

    sgd_, adam = torch.optim.SGD, torch.optim.AdamW
    assert rate(sgd_(model.parameters(), lr=0.2), coefficient_weight_decay=0.0) == pytest.approx(0.2)
    assert rate(sgd_(model.parameters(), lr=0.2)) == pytest.approx(0.2 * (1 + 5e-4))
    assert rate(sgd_(model.parameters(), lr=0.2, weight_decay=0.01)) == pytest.approx(0.2 * 1.01)
    assert rate(sgd_(model.parameters(), lr=0.2), 0.02) == pytest.approx(0.02 * (1 + 5e-4))
    assert rate(adam(model.parameters())) == pytest.approx(0.1 * (1 + 5e-4))
    assert rate(adam(model.parameters(), lr=1e-3), 1e-4) == pytest.approx(0.01 * (1 + 5e-4))
    assert rate(adam(model.parameters()), coefficient_lr=0.3) == pytest.approx(0.3 * (1 + 5e-4))
    warm = adam(model.parameters(), lr=1e-3)
    torch.optim.lr_scheduler.LinearLR(warm, start_factor=0.1, total_iters=10)
    assert rate(warm) == pytest.approx(0.01 * (1 + 5e-4))
    assert rate(sgd_(model.parameters(), lr=torch.tensor(0.2))) == pytest.approx(0.2 * (1 + 5e-4))
    own = {"coefficient_schedule": lambda step: 0.25 if step == 0 else 1.0}
    assert rate(sgd_(model.parameters(), lr=0.2), 0.02, **own) == pytest.approx(0.05 * (1 + 5e-4))


def test_a_closure_gives_the_plain_loops_weights():
    plain, closed = network(), network()
    for model, with_closure in ((plain, False), (closed, True)):
        optimizer = sgd(model)
        th.Shrinkage(model, th.HALO(1e-3), optimizer)
        for i, (x, y) in enumerate(batches(6)):

            def closure(x=x, y=y, model=model, optimizer=optimizer):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            if not with_closure:
                closure()
                optimizer.step()
            elif i % 2:
                optimizer.step(closure)
            else:
                optimizer.step(closure=closure)
    assert_same(closed, plain)


def test_an_optimizer_that_calls_its_closure_twice_is_stopped():
    class Twice(torch.optim.SGD):
        def step(self, closure=None):
            closure()
            return super().step(closure)

    model = nn.Linear(2, 2)
    optimizer = Twice(model.parameters(), lr=0.1)
    th.Shrinkage(model, th.L1(0.1), optimizer)
    with pytest.raises(RuntimeError, match="Twice evaluates its closure more than once"):
        optimizer.step(lambda: model(torch.ones(2)).sum().backward())


def test_lbfgs_is_refused():
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="LBFGS evaluates the loss many times a step"):
        th.Shrinkage(model, th.L1(0.1), torch.optim.LBFGS(model.parameters()))


def test_tied_weights_are_shrunk_once_and_frozen_ones_not_at_all():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    model[2].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shrink = th.Shrinkage(model, th.L1(1.0), optimizer)
    assert float(shrink.value()) == pytest.approx(float(model[0].weight.detach().abs().sum()))
    sign = model[0].weight.detach().sign()
    model[0].weight.grad = torch.zeros_like(model[0].weight)
    model[2].weight.grad = torch.zeros_like(model[0].weight)
    optimizer.step()
    assert torch.equal(model[0].weight.grad, sign)
    assert not model[2].weight.grad.any()


def test_sws_keeps_one_scalar_and_counts_its_prior_once():
    model = network()
    optimizer = sgd(model)
    shrink = th.Shrinkage(model, th.SWS(0.1, 0.7), optimizer)
    train(model, optimizer, batches(5))
    lam = list(shrink.coefficients.values())
    assert all(part is lam[0] for part in lam)
    assert lam[0].shape == ()
    total = sum(float(p.detach().abs().sum()) for p in (model[0].weight, model[4].weight))
    assert float(shrink.value()) == pytest.approx(0.1 * total / float(lam[0]) ** 2 + 0.7 * float(lam[0]) ** 2)


def test_parameter_groups_have_their_own_rates():
    model = network()
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[4].parameters(), "lr": 0.0}]
    )
    shrink = th.Shrinkage(model, th.HALO(1e-2), optimizer)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert not torch.equal(shrink.coefficients["0.weight"], torch.ones_like(model[0].weight))
    assert torch.equal(shrink.coefficients["4.weight"], torch.ones_like(model[4].weight))


@pytest.mark.parametrize("groups", ["out", "in", "kernel"])
@pytest.mark.parametrize(
    ("layer", "channels"),
    [
        (lambda: nn.Linear(6, 4), {"out": 4, "in": 6, "kernel": 24}),
        (lambda: nn.Conv2d(6, 4, 3), {"out": 4, "in": 6, "kernel": 24}),
        (lambda: nn.Conv2d(6, 4, 3, groups=2), {"out": 4, "in": 6, "kernel": 12}),
        (lambda: nn.Conv2d(6, 6, 3, groups=6), {"out": 6, "in": 6, "kernel": 6}),
        (lambda: nn.ConvTranspose2d(6, 4, 3), {"out": 4, "in": 6, "kernel": 24}),
        (lambda: nn.ConvTranspose2d(6, 4, 3, groups=2), {"out": 4, "in": 6, "kernel": 12}),
    ],
    ids=["linear", "conv", "grouped", "depthwise", "transposed", "transposed-grouped"],
)
def test_groups_are_the_layers_channels(layer, channels, groups):
    """A group's gradient goes to exactly the weights that the channel touches."""
    layer = layer()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    shrink = th.Shrinkage(layer, th.SHALO(0.1, groups=groups), optimizer)
    lam = shrink.coefficients["weight"]
    assert lam.numel() == channels[groups]
    x = torch.randn(2, 6) if isinstance(layer, nn.Linear) else torch.randn(2, 6, 5, 5)
    with torch.no_grad():
        lam.view(-1)[0] = 0.1
    layer.weight.grad = torch.zeros_like(layer.weight)
    optimizer.step()
    touched = (layer.weight.grad.abs() > 5.0).detach()
    assert int(touched.sum()) == layer.weight.numel() // channels[groups]
    with torch.no_grad():
        layer.bias.zero_()
        layer.weight.mul_(touched)
    out = layer(x).transpose(0, 1).flatten(1).abs().sum(1) > 0
    if groups != "in":
        assert out.tolist() == [True] + [False] * (len(out) - 1)
    if groups != "out":
        x[:, 0] = 0.0
        assert not layer(x).any()


def test_a_model_cast_after_attaching_takes_lambda_along():
    model = network(torch.float32)
    optimizer = sgd(model)
    shrink = th.Shrinkage(model, th.HALO(1e-3), optimizer)
    train(model, optimizer, batches(2, torch.float32))
    model.double()
    optimizer.load_state_dict(optimizer.state_dict())  # as torch wants it, for its own momentum
    train(model, optimizer, batches(2))
    assert all(lam.dtype == torch.float64 for lam in shrink.coefficients.values())
    assert optimizer.state[model[0].weight]["halo_coefficient"] is shrink.coefficients["0.weight"]


def test_a_second_shrinkage_on_the_same_parameters_is_refused():
    model = network()
    optimizer = sgd(model)
    first = th.Shrinkage(model, th.L1(0.1), optimizer, select="0")
    with pytest.raises(ValueError, match=r"^0\.weight would be shrunk twice: another Shrinkage has them"):
        th.Shrinkage(model, th.HALO(0.1), optimizer)
    th.Shrinkage(model, th.HALO(0.1), optimizer, select="4")
    first.detach()
    th.Shrinkage(model, th.HALO(0.1), optimizer, select="0")


def test_two_on_one_optimizer_count_for_themselves(tmp_path):
    model = network()
    optimizer = adamw(model)
    first = th.Shrinkage(model, th.L1(1e-3), optimizer, select="0", ramp_steps=100)
    train(model, optimizer, batches(4))
    second = th.Shrinkage(model, th.HALO(1e-3), optimizer, select="4", ramp_steps=100)
    train(model, optimizer, batches(6))
    group = optimizer.param_groups[0]
    assert (group["halo_step_0"], group["halo_step_4"]) == (10, 6)
    with torch.no_grad():
        model[4].weight[0, 0] = math.nan
    group["halo_step_4"] = 50
    with pytest.raises(FloatingPointError, match=r"4\.weight: the weight is not finite at step 50"):
        optimizer.step()
    with torch.no_grad():
        model[4].weight.zero_()
    first.detach()
    first.detach()
    train(model, optimizer, batches(1))
    assert group["halo_step_4"] == 51
    assert "halo_step_0" not in group
    again = th.Shrinkage(model, th.HALO(1e-3), optimizer, select="0")
    first.detach()  # the old one: nothing of the new one's
    train(model, optimizer, batches(1))
    assert group["halo_step_0"] == 1
    with pytest.raises(ValueError, match="would be shrunk twice"):
        th.Shrinkage(model, th.L1(1e-3), optimizer)
    again.detach()
    second.detach()


def test_several_are_found_again_in_any_order():
    def build(order, saved=None, load_first=False):
        model = network()
        optimizer = torch.optim.SGD(
            [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[4].parameters(), "lr": 0.05}], momentum=0.9
        )
        if saved and load_first:
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(copy.deepcopy(saved[1]))  # torch lets both share tensors
        penalties = {"0": th.HALO(1e-3), "4": th.SHALO(1e-3)}
        shrinks = {key: th.Shrinkage(model, penalties[key], optimizer, select=key, ramp_steps=20) for key in order}
        if saved and not load_first:
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(copy.deepcopy(saved[1]))  # torch lets both share tensors
        return model, optimizer, shrinks

    data = list(batches(10))
    whole, optimizer, _ = build("04")
    train(whole, optimizer, data)
    half, optimizer, shrinks = build("04")
    train(half, optimizer, data[:5])
    saved = copy.deepcopy((half.state_dict(), optimizer.state_dict()))
    for load_first in (False, True):
        again, resumed, _ = build("40", saved, load_first)
        train(again, resumed, data[5:])
        assert_same(again, whole, rtol=1e-12, atol=1e-14)
    shrinks["0"].detach()
    train(half, optimizer, data[5:])
    saved = copy.deepcopy((half.state_dict(), optimizer.state_dict()))
    for load_first in (False, True):
        _, resumed, left = build("4", saved, load_first)
        torch.testing.assert_close(left["4"].coefficients, shrinks["4"].coefficients, rtol=0, atol=0)
        assert resumed.param_groups[1]["halo_step_2"] == 10


def test_regrouped_parameters_go_on():
    model = network()
    optimizer = sgd(model)
    th.Shrinkage(model, th.HALO(1e-3), optimizer)
    train(model, optimizer, batches(1))
    parameters = optimizer.param_groups[0]["params"]
    rest = dict(optimizer.defaults)
    optimizer.param_groups[:] = [{**rest, "params": parameters[:2]}, {**rest, "params": parameters[2:]}]
    train(model, optimizer, batches(1))
    assert [group["halo_step_0"] for group in optimizer.param_groups] == [1, 1]


def test_a_weight_frozen_after_attaching_is_left_alone():
    model = nn.Linear(3, 2, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    th.Shrinkage(model, th.L1(0.1), optimizer)
    model.weight.grad = torch.zeros_like(model.weight)
    model.weight.requires_grad_(False)
    before = model.weight.clone()
    optimizer.step()
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("attach_first", [True, False])
def test_a_one_cycle_schedule_gives_lambda_the_same_rate_before_and_after_attaching(attach_first):
    model = nn.Linear(2, 2, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    steps = [lambda: th.Shrinkage(model, th.HALO(0.0, 1.0), optimizer, coefficient_weight_decay=0.0)]
    steps.append(lambda: torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=10))
    made = [step() for step in (steps if attach_first else reversed(steps))]
    shrink = made[0] if attach_first else made[1]
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()
    assert float(1 - shrink.coefficients["weight"][0, 0]) == pytest.approx(0.1 / 25, rel=1e-4)


def test_an_optimizer_without_learning_rate_is_refused():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["lr"] = None
    with pytest.raises(ValueError, match=r"SGD has lr=None; λ's learning rate follows"):
        th.Shrinkage(model, th.HALO(0.1), optimizer)


def test_a_refused_attachment_leaves_no_key_behind():
    model = network()
    optimizer = torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[4].parameters()}], lr=0.1)
    optimizer.param_groups[1]["lr"] = None
    before = [set(group) for group in optimizer.param_groups]
    with pytest.raises(ValueError, match="has lr=None"):
        th.Shrinkage(model, th.HALO(0.1), optimizer)
    assert [set(group) for group in optimizer.param_groups] == before


def test_detach_leaves_no_empty_entries():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shrink = th.Shrinkage(model, th.HALO(1e-3), optimizer)
    train(model, optimizer, batches(1))
    shrink.detach()
    assert optimizer.state_dict()["state"] == {}


def test_adaptive_weights_of_a_wrapped_model():
    model = network()
    wrapped = torch.compile(model, backend="eager")
    optimizer = sgd(model)
    shrink = th.Shrinkage(wrapped, th.WeightedL1(1.0, th.adaptive_weights(wrapped)), optimizer)
    expected = (model[0].weight.detach().abs() + 1e-3) ** -1
    torch.testing.assert_close(shrink.coefficients["0.weight"], expected)


def test_parameters_of_a_forgotten_optimizer_are_free():
    model = network()
    optimizer = sgd(model)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # makes a cycle of references
    shrink = th.Shrinkage(model, th.L1(0.1), optimizer)
    del optimizer
    again = th.Shrinkage(model, th.L1(0.1), sgd(model))
    assert float(again.value()) > 0
    shrink.detach()


@pytest.mark.parametrize("make", [sgd, adamw])
def test_detach_leaves_the_optimizer_as_it_was(make):
    model, plain = network(), network()
    optimizer, reference = make(model), make(plain)
    shrink = th.Shrinkage(model, th.HALO(1e-3), optimizer)
    train(model, optimizer, batches(2))
    shrink.detach()
    train(plain, reference, batches(2))
    assert optimizer.state_dict()["param_groups"] == reference.state_dict()["param_groups"]
    for got, wanted in zip(
        optimizer.state_dict()["state"].values(), reference.state_dict()["state"].values(), strict=True
    ):
        assert got.keys() == wanted.keys()
    weight = model[0].weight.detach().clone()
    model[0].weight.grad = torch.zeros_like(weight)
    optimizer.step()
    assert not model[0].weight.grad.any()


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("penalty", PENALTIES, ids=named)
def test_every_penalty_sees_a_weight_that_is_not_finite(penalty, value):
    model = network()
    optimizer = sgd(model)
    th.Shrinkage(model, fit(penalty, model), optimizer)
    with torch.no_grad():
        model[4].weight[0, 0] = value
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    with pytest.raises(FloatingPointError, match=r"4\.weight: the weight is not finite at step 0"):
        optimizer.step()


@pytest.mark.parametrize("what", ["weight", "coefficient λ", "penalty"])
def test_a_number_that_is_not_finite_stops_the_training(what):
    model = network()
    optimizer = sgd(model)
    shrink = th.Shrinkage(model, th.HALO(1e-6), optimizer)
    train(model, optimizer, batches(49))
    with torch.no_grad():
        if what == "weight":
            model[4].weight[0, 0] = math.nan
    train(model, optimizer, [] if what == "weight" else batches(1))
    shrink.coefficients["4.weight"][0, 0] = {"weight": 1.0, "coefficient λ": math.nan, "penalty": 1e-160}[what]
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    if what == "weight":
        optimizer.step()
    with pytest.raises(FloatingPointError, match=rf"4\.weight: the {what} is not finite at step 50"):
        optimizer.step()
    assert optimizer.param_groups[0]["halo_step_0"] == 50


def test_a_lambda_that_does_not_spread_is_warned_about():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    th.Shrinkage(model, th.HALO(1e-8), optimizer, coefficient_weight_decay=0.0)
    optimizer.param_groups[0]["halo_step_0"] = 999
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    with pytest.warns(UserWarning, match=r"after 1000 steps λ's spread is 0\.00% of its mean"):
        optimizer.step()


def test_memory_is_lambda_and_its_momentum():
    model = network()
    optimizer = sgd(model)
    th.Shrinkage(model, th.HALO(1e-3), optimizer)
    train(model, optimizer, batches(1))
    extra = {key for entry in optimizer.state.values() for key in entry if key.startswith("halo")}
    assert extra == {"halo_coefficient", "halo_momentum"}


def test_nothing_of_the_model_changes():
    model = network()
    keys, copied = list(model.state_dict()), copy.deepcopy(model)
    optimizer = sgd(model)
    th.Shrinkage(model, th.HALO(1e-3), optimizer)
    train(model, optimizer, batches(2))
    masks = th.prune_(model, sparsity=0.5)
    masks.hold(optimizer)
    train(model, optimizer, batches(2))
    th.recalibrate_(model, batches(2))
    assert list(model.state_dict()) == keys
    assert [type(m) for m in model.modules()] == [type(m) for m in copied.modules()]
    again = copy.deepcopy(model)
    assert_same(again, model)
    assert not any(vars(p) for p in model.parameters())


def test_a_compiled_model_still_trains_with_it():
    plain, inner = network(), network()
    compiled = torch.compile(inner, backend="aot_eager")
    for model in (plain, compiled):
        optimizer = sgd(model)
        shrink = th.Shrinkage(model, th.HALO(1e-3), optimizer)
        train(model, optimizer, batches(5))
    assert list(shrink.coefficients) == NAMES
    assert_same(inner, plain, rtol=1e-9, atol=1e-12)
    assert list(th.prune_(compiled, sparsity=0.5)) == NAMES


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coefficient_lr": -1.0}, "coefficient_lr must be a finite number at least 0; received -1.0"),
        ({"coefficient_weight_decay": math.nan}, "coefficient_weight_decay must be a finite number"),
        ({"ramp_steps": -1}, "ramp_steps must be a whole number, at least 0; received -1"),
        ({"until_step": 2.5}, "until_step must be a whole number, at least 0; received 2.5"),
        ({"select": "clasifier"}, "'clasifier' matches no weight; there are: 0.weight, 4.weight"),
    ],
)
def test_bad_options_change_nothing(options, message):
    model = network()
    optimizer = sgd(model)
    before = optimizer.state_dict()
    with pytest.raises(ValueError, match=message):
        th.Shrinkage(model, th.HALO(1e-3), optimizer, **options)
    assert optimizer.state_dict() == before
    assert not optimizer._optimizer_step_pre_hooks
    th.Shrinkage(model, th.HALO(1e-3), optimizer)


def test_bad_partners():
    model, other = network(), nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"the optimizer does not hold 0\.weight, 4\.weight"):
        th.Shrinkage(model, th.L1(0.1), sgd(other))
    with pytest.raises(TypeError, match=r"optimizer must be a torch\.optim\.Optimizer; received str"):
        th.Shrinkage(model, th.L1(0.1), "sgd")
    with pytest.raises(TypeError, match=r"penalty must be a penalty object \(l1, bridge, .*received 'halo'"):
        th.Shrinkage(model, "halo", sgd(model))
    with pytest.raises(ValueError, match=r"no weights for 4\.weight; given: 0\.weight"):
        th.Shrinkage(model, th.WeightedL1(0.1, {"0.weight": torch.ones(4, 2, 3, 3)}), sgd(model))
    with pytest.raises(ValueError, match=r"has shape \(2,\); the parameter has \(4, 2, 3, 3\)"):
        th.Shrinkage(model, th.WeightedL1(0.1, {"0.weight": torch.ones(2)}), sgd(model), select="0")


def test_a_sparse_gradient_is_refused():
    model = nn.EmbeddingBag(4, 3, sparse=True, mode="sum")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    th.Shrinkage(model, th.L1(0.1), optimizer, select=nn.EmbeddingBag)
    model(torch.tensor([[0, 1]])).sum().backward()
    with pytest.raises(ValueError, match=r"weight has a gradient of layout torch\.sparse_coo"):
        optimizer.step()
