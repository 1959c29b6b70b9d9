import pytest
import torch

from torch_halo.models import MODELS

# input shape, classes, parameters
COUNTS = {
    "lenet-300-100": [((1, 28, 28), 10, 266_610)],
    "vgg16": [((3, 32, 32), 10, 14_728_266), ((3, 32, 32), 100, 14_774_436)],
}


def test_every_model_is_counted():
    assert list(COUNTS) == list(MODELS)


@pytest.mark.parametrize(("name", "case"), [(name, case) for name, cases in COUNTS.items() for case in cases])
def test_parameters_and_output(name, case):
    shape, classes, count = case
    model = MODELS[name](shape, classes)
    assert sum(p.numel() for p in model.parameters()) == count
    assert model(torch.zeros(2, *shape)).shape == (2, classes)


def test_vgg_starts_as_the_paper_has_it():
    model = MODELS["vgg16"]((3, 32, 32), 10)
    weight = model.features[3].weight
    assert float(weight.detach().std()) == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.02)
    assert float(model.classifier.weight.detach().std()) == pytest.approx(0.01, rel=0.05)
    narrow = MODELS["vgg16"]((3, 32, 32), 10, width=0.25)
    assert narrow.features[0].out_channels == 16
