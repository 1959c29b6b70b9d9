"""The paper's settings, and what its authors' code does otherwise (Seto, Wells, Zhang, SDM 2021)."""

import pytest
from torch import nn

import torch_halo as th
from torch_halo.data import DATASETS
from torch_halo.experiments.presets import CONVOLUTIONS, PRESETS, authors_code, paper
from torch_halo.models import MODELS
from torch_halo.selection import select_weights
from torch_halo.training.optimizers import SGD


def rates(schedule, per_epoch, epochs, steps):
    factor, lam = (
        schedule.factor(per_epoch, per_epoch * epochs),
        schedule.coefficient_factor(per_epoch, per_epoch * epochs),
    )
    return [(0.1 * factor(step), 0.1 * (lam or factor)(step)) for step in steps]


def test_the_text_on_mnist():
    found = paper("mnist", "lenet-300-100", "halo")
    assert (found.training.epochs, found.training.batch_size) == (250, 100)
    assert found.optimizer == SGD(0.1, 0.9, 5e-4)
    assert found.shrinking.select is None
    assert found.shrinking.coefficient_weight_decay is None  # the weights'
    expected = [(0.1, 0.1), (0.01, 0.01), (0.01, 0.01), (1e-3, 1e-3)]
    assert rates(found.schedule, 600, 250, [24_999, 25_000, 49_999, 50_000]) == [pytest.approx(x) for x in expected]


@pytest.mark.parametrize("data", ["cifar10", "cifar100"])
def test_the_text_on_cifar(data):
    found = paper(data, "vgg16", "halo")
    assert (found.training.epochs, found.training.batch_size) == (160, 64)
    assert found.optimizer == SGD(0.1, 0.9, 1e-4)
    expected = [(0.1, 0.1), (0.01, 0.01), (1e-3, 1e-3)]
    assert rates(found.schedule, 10, 160, [799, 800, 1200]) == [pytest.approx(x) for x in expected]


def test_the_code_on_mnist_never_decays_lambda():
    found = authors_code("mnist", "lenet-300-100", "halo")
    expected = [(0.1, 0.1), (1e-3, 0.1), (1e-5, 0.1)]
    assert rates(found.schedule, 600, 250, [0, 25_000, 50_000]) == [pytest.approx(x) for x in expected]
    assert found.shrinking.biases
    assert found.pruning.of == "nonzero"


def test_the_code_on_cifar_decays_twice():
    found = authors_code("cifar100", "vgg16", "halo")
    expected = [(0.1, 0.1), (0.01, 1e-3), (1e-4, 1e-5)]
    assert rates(found.schedule, 10, 160, [0, 800, 1200]) == [pytest.approx(x) for x in expected]
    assert found.penalty == th.HALO(1e-8)
    assert found.shrinking.biases


def test_the_codes_other_methods_have_the_ordinary_schedule():
    assert authors_code("cifar10", "vgg16", "l1").schedule == paper("cifar10", "vgg16", "l1").schedule


@pytest.mark.parametrize("name", MODELS)
def test_on_cifar_the_convolutions_are_pruned(name):
    model = MODELS[name]((3, 32, 32), 10)
    convolutions = [f"{key}.weight" for key, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    if not convolutions:
        assert name not in CONVOLUTIONS
        return
    assert [weight.name for weight in select_weights(model, CONVOLUTIONS[name])] == convolutions


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("data", DATASETS)
def test_data_sets_that_the_paper_does_not_have_are_refused(preset, data):
    if data in ("mnist", "cifar10", "cifar100"):
        assert PRESETS[preset](data, "vgg16", None).data.name == data
    else:
        with pytest.raises(ValueError, match=f"unknown data set of the paper '{data}'; known: mnist, cifar10"):
            PRESETS[preset](data, "vgg16", None)
