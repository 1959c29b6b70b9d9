"""A target sparsity: followed on the way, exact in the end, resumed to the bit."""

import copy
import functools

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.nn import functional as F

import torch_halo as th
from torch_halo.data import load
from torch_halo.models import lenet_300_100
from torch_halo.target import FREEZE, REST, Target

DATA = load("digits").normalised()
EPOCHS, BATCH = 20, 64
STEPS = EPOCHS * -(-len(DATA.train.labels) // BATCH)
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=5e-4),
    "adamw": lambda p: torch.optim.AdamW(p),
}


def lenet():
    return lenet_300_100(DATA.input_shape, DATA.classes)


def small():
    """Enough for what is not about accuracy."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 10))


def is_exact(model, target):
    sparse = th.sparsity(model)
    return sparse.zeros == round(target * sparse.weights)


def started(steps, target=0.9, make=OPTIMIZERS["sgd"], **shrinking):
    """A small network, its optimizer and its shrinkage, with the gradients of one batch."""
    torch.manual_seed(0)
    model = small()
    optimizer = make(model.parameters())
    shrink = th.Shrinkage(model, th.HALO(), optimizer, target_sparsity=target, total_steps=steps, **shrinking)
    backward(model, 0)
    return model, optimizer, shrink


def backward(model, step):
    model.zero_grad()
    index = (torch.arange(64) + 64 * step) % len(DATA.train.labels)
    F.cross_entropy(model(DATA.train.inputs[index]), DATA.train.labels[index]).backward()


def train(model, optimizer, steps):
    for step in range(steps):
        backward(model, step)
        optimizer.step()


class Training:
    """A loop with its shrinkage, which can be stopped and gone on with."""

    def __init__(self, target, make, penalty=None, network=small, seed=0):
        torch.manual_seed(seed)
        self.model = network()
        self.optimizer = make(self.model.parameters())
        self.shrink = th.Shrinkage(
            self.model, penalty or th.HALO(), self.optimizer, target_sparsity=target, total_steps=STEPS
        )
        self.step, self.zeros = 0, [0.0]

    def run(self, until=STEPS):
        while self.step < until:
            order = torch.randperm(
                len(DATA.train.labels), generator=torch.Generator().manual_seed(self.step // (STEPS // EPOCHS))
            )
            index = order.split(BATCH)[self.step % (STEPS // EPOCHS)]
            self.optimizer.param_groups[0]["lr"] = self.optimizer.defaults["lr"] * (1 - self.step / STEPS)
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(DATA.train.inputs[index]), DATA.train.labels[index]).backward()
            self.optimizer.step()
            self.step += 1
            self.zeros.append(
                self.shrink._steering._zeros() if self.step % 5 == 0 or self.step > FREEZE * STEPS else self.zeros[-1]
            )
        return self

    def accuracy(self):
        return 100 * (self.model(DATA.test.inputs).argmax(1) == DATA.test.labels).double().mean().item()


@pytest.mark.parametrize(
    ("optimizer", "target", "at_least"),
    [("sgd", 0.5, 96), ("sgd", 0.9, 96), ("sgd", 0.98, 94), ("sgd", 0.995, 90), ("adamw", 0.5, 96), ("adamw", 0.9, 92)],
)
def test_the_zeros_follow_and_the_count_is_exact(optimizer, target, at_least):
    found = Training(target, OPTIMIZERS[optimizer], network=lenet).run()
    wanted = Target(target, STEPS)
    last = round(FREEZE * STEPS) // 5 * 5
    off = [abs(found.zeros[step] - wanted.wanted(step)) for step in range(STEPS // 5, last, 5)]
    assert max(off) < 0.04
    assert off[-1] < 0.005
    assert is_exact(found.model, target)
    assert len(set(found.zeros[last + 5 :])) == 1  # frozen
    assert found.accuracy() >= at_least


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_zeros_rest_after_a_while(optimizer):
    training, came_back = Training(0.9, OPTIMIZERS[optimizer]), {}
    dead = training.model[1].weight == 0
    while training.step < round(FREEZE * STEPS):
        training.run(training.step + 1)
        came_back[training.step] = int((dead & (training.model[1].weight != 0)).sum())
        dead = training.model[1].weight == 0
    begins = round(REST * STEPS)
    assert all(count == 0 for step, count in came_back.items() if step > begins)
    assert sum(came_back.values()) > 20  # before


def test_it_may_be_steered_to_the_end():
    model, optimizer, shrink = started(200, freeze=False)
    train(model, optimizer, 200)
    assert abs(th.sparsity(model).sparsity - 0.9) < 0.02
    assert float(shrink.value()) > 0  # which it would not be if the zeros were frozen


def test_another_penalty_and_any_first_strength():
    for xi in (1e-9, 1e3):
        found = Training(0.9, OPTIMIZERS["sgd"], th.L1(xi, proximal=True)).run()
        assert is_exact(found.model, 0.9)
        assert found.accuracy() > 90


@functools.cache
def whole(optimizer):
    return Training(0.9, OPTIMIZERS[optimizer]).run().model


def assert_equal(model, other):
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("stop", [0.2, REST, 0.45, FREEZE, 0.9])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_goes_on_to_the_bit(optimizer, stop):
    first = Training(0.9, OPTIMIZERS[optimizer]).run(round(stop * STEPS))
    second = Training(0.9, OPTIMIZERS[optimizer], seed=5)
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
    second.step = first.step
    assert_equal(second.run().model, whole(optimizer))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_distributed_checkpoint_holds_where_it_is(optimizer, tmp_path):
    first = Training(0.9, OPTIMIZERS[optimizer]).run(STEPS // 2)
    state = {"model": first.model.state_dict(), "optimizer": get_optimizer_state_dict(first.model, first.optimizer)}
    dcp.save(state, checkpoint_id=tmp_path, no_dist=True)
    second = Training(0.9, OPTIMIZERS[optimizer], seed=5)
    state = {"model": second.model.state_dict(), "optimizer": get_optimizer_state_dict(second.model, second.optimizer)}
    dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
    second.model.load_state_dict(state["model"])
    set_optimizer_state_dict(second.model, second.optimizer, state["optimizer"])
    second.step = STEPS // 2
    assert_equal(second.run().model, whole(optimizer))


@pytest.mark.parametrize("share", [0.1, 0.4])
def test_a_step_in_which_nothing_moves_changes_nothing(share):
    """Distributed checkpoints make one, with a learning rate of 0."""
    training = Training(0.9, OPTIMIZERS["sgd"]).run(round(share * STEPS))
    group = training.optimizer.param_groups[0]
    before, weight = dict(group), training.model[1].weight.clone()
    group["lr"] = 0.0
    training.optimizer.step()
    group["lr"] = before["lr"]
    training.optimizer.zero_grad()
    training.optimizer.step()
    assert torch.equal(training.model[1].weight, weight)
    assert dict(group) == before


def test_a_step_that_fails_leaves_no_masks_behind():
    training = Training(0.9, OPTIMIZERS["sgd"]).run(STEPS // 2)
    training.shrink._shrink(training.optimizer)  # and no update follows
    with torch.no_grad():
        training.model[1].weight.fill_(1.0)
    training.optimizer.found_inf = torch.ones(())  # as a GradScaler tells a fused optimizer, which then skips the step
    training.shrink._shrink(training.optimizer)
    training.shrink._threshold(training.optimizer)
    assert not (training.model[1].weight == 0).any()


@pytest.mark.filterwarnings("ignore:after .* of the weights are zero where")
def test_too_many_zeros_come_back():
    """A learning rate that rises again makes the strength cut far too much at once."""
    model, optimizer, shrink = started(600, 0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 200)
    zeros = []
    for step in range(600):
        backward(model, step)
        optimizer.step()
        schedule.step()
        zeros.append(shrink._steering._zeros())
    assert max(zeros[200:220]) > 0.93 > 0.91 > zeros[round(FREEZE * 600) - 2] > 0.89
    assert is_exact(model, 0.9)


@pytest.mark.filterwarnings("ignore:.*would have lost every weight")
def test_it_warns_where_it_cannot():
    _, optimizer, _ = started(5, target=0.99)
    for _ in range(3):
        optimizer.step()
    with pytest.warns(UserWarning, match=r"of the weights are zero where 99\.0% were to be"):
        optimizer.step()


def test_it_warns_early():
    """A learning rate that falls to almost nothing leaves weights where they are."""
    _, optimizer, _ = started(1000)

    def fall():
        for step in range(400):
            optimizer.param_groups[0]["lr"] = 0.1 * 0.5**step
            optimizer.step()

    with pytest.warns(UserWarning, match=r"after 1\d\d of 1000 steps .* the target of 90\.0% may be missed") as caught:
        fall()
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("penalty", "options", "message"),
    [
        (th.HALO(), {}, "xi is auto: give it a number, e.g. HALO"),
        (th.HALO(), {"target_sparsity": 0.9}, "target_sparsity needs total_steps"),
        (th.L1(0.1), {"target_sparsity": 0.9, "total_steps": 10}, "needs exact zeros: a penalty with proximal=True"),
        (th.MCP(0.1, 9, proximal=True), {"target_sparsity": 0.9, "total_steps": 9}, "steers HALO, L1 and bridge"),
        (th.Bridge(0.1, 2, proximal=True), {"target_sparsity": 0.9, "total_steps": 9}, "steers HALO, L1 and bridge"),
        (th.HALO(0.1, solve="profile"), {"total_steps": -3}, "total_steps must be a whole number, at least 1"),
        (th.HALO(), {"target_sparsity": 1.0, "total_steps": 10}, "target_sparsity must be a finite number above 0"),
        (th.HALO(), {"target_sparsity": 0.9, "total_steps": 0}, "total_steps must be a whole number, at least 1"),
        (th.HALO(), {"target_sparsity": 0.9, "total_steps": 9, "ramp_steps": 3}, "goes without ramp_steps"),
    ],
)
def test_bad_input(penalty, options, message):
    model = small()
    with pytest.raises(ValueError, match=message):
        th.Shrinkage(model, penalty, OPTIMIZERS["sgd"](model.parameters()), **options)


@pytest.mark.parametrize("until", [3, STEPS])
def test_detaching_leaves_nothing(until):
    training = Training(0.9, OPTIMIZERS["sgd"]).run(until)
    training.shrink.detach()
    assert not [key for key in training.optimizer.param_groups[0] if key.startswith("halo")]
    assert not training.optimizer._optimizer_step_post_hooks
    training.optimizer.param_groups[0]["lr"] = 0.1
    training.optimizer.step()
    assert th.sparsity(training.model).sparsity < 0.5  # nothing is held any more; dead inputs move nothing


def test_an_earlier_state_loaded_into_the_same_objects_is_gone_on_with():
    training = Training(0.9, OPTIMIZERS["sgd"]).run(STEPS // 2)
    model, optimizer = copy.deepcopy(training.model.state_dict()), copy.deepcopy(training.optimizer.state_dict())
    first = copy.deepcopy(training.run().model.state_dict())
    training.model.load_state_dict(model)
    training.optimizer.load_state_dict(optimizer)
    training.step = STEPS // 2
    second = training.run().model.state_dict()
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize("scale", [1.0, 1e-4])
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad])
def test_the_first_step_cuts_next_to_nothing_whatever_the_losss_scale(make, scale):
    model, optimizer, _ = started(100, make=lambda p: make(p, lr=1e-3))
    for p in model.parameters():
        p.grad.mul_(scale)
    optimizer.step()
    assert 0 < th.sparsity(model).sparsity < 0.01


def test_biases_are_shrunk_but_not_counted_or_frozen():
    model, optimizer, _ = started(60, select=lambda name, p: True)
    train(model, optimizer, 60)
    assert is_exact(model, 0.9)
    assert all(bool((p != 0).all()) for p in model.parameters() if p.ndim == 1)


def test_a_sparse_network_is_made_sparser():
    training = Training(0.9, OPTIMIZERS["sgd"]).run(STEPS)
    training.shrink.detach()
    masks = th.Masks({name: p != 0 for name, p in training.model.named_parameters() if p.ndim > 1})
    masks.apply_(training.model).hold(training.optimizer)
    training.shrink = th.Shrinkage(
        training.model, th.HALO(), training.optimizer, target_sparsity=0.98, total_steps=STEPS
    )
    training.step = 0
    training.run()
    assert min(training.zeros[-STEPS + 1 :]) >= 0.89
    # A weight that the first masks hold cannot come back.
    sparse = th.sparsity(training.model)
    assert 0 <= sparse.zeros - round(0.98 * sparse.weights) < 10


def test_groups_that_start_later_are_steered_alike():
    model, optimizer, shrink = started(150, 0.8, lambda p: torch.optim.SGD([{"params": [x]} for x in p], lr=0.1))
    for step in range(150):
        optimizer.param_groups[0]["lr"] = 0.0 if step < 20 else 0.1
        backward(model, step)
        optimizer.step()
        strengths = {group[shrink._state.strength] for group in optimizer.param_groups if shrink._state.step in group}
        assert len(strengths) == 1
    assert is_exact(model, 0.8)
