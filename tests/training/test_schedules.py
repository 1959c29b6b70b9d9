"""Learning rates by step, by hand and against torch's schedulers."""

import math
from itertools import pairwise

import pytest
import torch

from torch_halo.training.schedules import SCHEDULES, Constant, Cosine, Steps


def rates(factor, count):
    return [factor(step) for step in range(count)]


def torchs(make, count):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, found = make(optimizer), []
    for _ in range(count):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_steps_at_shares_epochs_and_batches():
    expected = [1.0] * 10 + [0.1] * 5 + [0.01] * 5
    assert rates(Steps().factor(4, 20), 20) == pytest.approx(expected)
    assert rates(Steps((2.5, 3.75), unit="epoch").factor(4, 20), 20) == pytest.approx(expected)
    assert rates(Steps((10, 15), unit="batch").factor(4, 20), 20) == pytest.approx(expected)
    multi = torchs(lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [10, 15], 0.1), 20)
    assert rates(Steps((10, 15), unit="batch").factor(4, 20), 20) == pytest.approx(multi)


def test_steps_every_so_many():
    expected = torchs(lambda o: torch.optim.lr_scheduler.StepLR(o, 6, 0.5), 20)
    assert rates(Steps((), every=6, unit="batch", lr_decay=(0.5,)).factor(3, 20), 20) == pytest.approx(expected)
    assert rates(Steps((), every=2, unit="epoch", lr_decay=(0.5,)).factor(3, 20), 20) == pytest.approx(expected)


def test_a_factor_for_each_milestone_and_for_lambda():
    steps = Steps((1, 2), unit="epoch", lr_decay=(0.1, 0.01), coefficient_lr_decay=(0.01, 0.01))
    assert rates(steps.factor(1, 3), 3) == pytest.approx([1, 0.1, 1e-3])
    assert rates(steps.coefficient_factor(1, 3), 3) == pytest.approx([1, 0.01, 1e-4])
    assert Steps().coefficient_factor(1, 3) is None


def test_cosine():
    expected = torchs(lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10, 0.1), 10)
    assert rates(Cosine(floor=0.1).factor(2, 10), 10) == pytest.approx(expected)
    warm = rates(Cosine(warmup=2).factor(2, 12), 12)
    assert warm[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert warm[4:] == pytest.approx([(1 + math.cos(math.pi * i / 8)) / 2 for i in range(8)])


def test_constant():
    assert rates(Constant().factor(2, 5), 5) == [1.0] * 5


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_begins_at_one_and_stays_in_range(name):
    found = rates(SCHEDULES[name]().factor(5, 50), 50)
    assert found[0] == 1
    assert all(0 <= later <= earlier for earlier, later in pairwise(found))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"milestones": (0.75, 0.5)}, r"milestones must rise; received 0.75 0.5"),
        ({"milestones": (80, 120)}, r"shares of the training, from 0 to 1; received 80 120 \(--unit epoch"),
        ({"unit": "day"}, "unit must be training, epoch or batch; received 'day'"),
        ({"every": 0, "unit": "epoch"}, "every must be a whole number, at least 1"),
        ({"every": 2}, "every counts epochs or batches"),
        (
            {"every": 2, "milestones": (1, 2), "unit": "epoch"},
            "give one of milestones and every; received",
        ),
        ({"unit": "epoch"}, "unit epoch needs milestones, or every"),
        ({"lr_decay": (0.1, 0.2, 0.3)}, "lr_decay needs one number, or one for each milestone; received 0.1 0.2 0.3"),
        ({"lr_decay": (-1.0,)}, "lr_decay must be a finite number at least 0"),
    ],
)
def test_bad_steps(options, message):
    with pytest.raises(ValueError, match=message):
        Steps(**options)
