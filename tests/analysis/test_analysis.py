"""Each analysis on networks of which the answer is known."""

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import nn

import torch_halo as th
from torch_halo.analysis import best_coefficients, coefficients, history, layers, overlap, spectrum
from torch_halo.figures import MAGNITUDES, shares_under
from torch_halo.models import MODELS


def shrinking(model, penalty):
    return th.Shrinkage(model, penalty, torch.optim.SGD(model.parameters(), lr=0.1))


def test_coefficients_that_rise_with_the_weights():
    model = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 10))
    shrink = shrinking(model, th.HALO(xi=1e-3))
    for name, lam in shrink.coefficients.items():
        lam.copy_(1 + model.get_parameter(name).detach().abs() ** 2)
    found = coefficients(model, shrink, sparsity=0.9, sample=500)
    assert (found.correlation, found.among_survivors) == pytest.approx((1, 1))
    assert len(found.magnitudes) == len(found.coefficients) == 500
    w = np.sort(np.concatenate([p.detach().abs().numpy().ravel() for p in (model[0].weight, model[1].weight)]))
    assert found.threshold == w[round(0.9 * len(w))]
    assert "1.000 among the weights that survive" in str(found)


def test_a_trend_that_only_the_survivors_have():
    model = nn.Linear(100, 100)
    w = model.weight.detach().abs()
    lam = torch.where(w > w.flatten().kthvalue(9500).values, w, torch.rand_like(w))
    found = coefficients(model, {"weight": lam})
    assert found.among_survivors == pytest.approx(1)
    assert found.correlation < 0.3


def test_zeros_do_not_survive():
    model = nn.Sequential(nn.Linear(50, 40), nn.Linear(40, 10))
    th.prune_(model, sparsity=0.9)
    lams = {name: 1 + p.detach().abs() for name, p in model.named_parameters()}
    for sparsity, scope in ((0.5, "global"), (0.9999, "global"), (0.5, "layer")):
        found = coefficients(model, lams, sparsity=sparsity, scope=scope)
        assert found.threshold > 0
    assert coefficients(model, lams, sparsity=0.0).threshold == min(
        p.abs()[p != 0].min() for p in (model[0].weight, model[1].weight)
    )


@pytest.mark.parametrize("penalty", [th.L1(1e-3), th.SWS(1e-3), th.HALO(xi=1e-3, solve="profile")], ids=str)
def test_without_coefficients(penalty):
    model = nn.Linear(4, 3)
    with pytest.raises(ValueError, match="no λ for each weight: train with HALO"):
        coefficients(model, shrinking(model, penalty))


@pytest.mark.parametrize("k", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_the_best_coefficient_minimises(k, decay):
    penalty = th.HALO(xi=0.2, psi=0.05, h=th.InversePower(k))
    for a in (0.01, 1.0, 30.0):
        found = optimize.minimize_scalar(
            lambda lam, a=a: 0.2 * a / lam**k + 0.05 * lam + decay * lam**2 / 2, bounds=(1e-6, 1e3), method="bounded",
            options={"xatol": 1e-10},
        )  # fmt: skip
        assert best_coefficients(np.array([a]), penalty, decay)[0] == pytest.approx(found.x, rel=1e-4)
    with pytest.raises(ValueError, match="a formula for h = 1/λ"):
        best_coefficients(np.ones(1), th.HALO(xi=1, h=th.LogSquared()))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.compile
def test_layers_in_order_and_where_images_become_smaller():
    model = MODELS["vgg16"]((3, 32, 32), 10, width=0.25)
    th.prune_(model, sparsity=0.5, scope="layer")
    found = layers(model)
    assert [layer.figures.name for layer in found] == [layer.name for layer in th.sparsity(model).layers]
    assert all(layer.figures.sparsity == pytest.approx(0.5, abs=0.01) for layer in found)
    assert [i for i, layer in enumerate(found) if layer.is_smaller] == [2, 4, 7, 10, 13]
    model = MODELS["resnet"]((3, 32, 32), 10, depth=20)
    smaller = [layer.figures.name for layer in layers(model) if layer.is_smaller]
    assert smaller == ["layer2.0.conv1.weight", "layer3.0.conv1.weight"]  # and not the shortcuts beside them
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.MaxPool2d(3, 1, 1), nn.Conv2d(2, 2, 3, 2), nn.Conv2d(2, 2, 3, 2)
    )
    assert [layer.is_smaller for layer in layers(model)] == [False, True, True]
    assert [layer.is_smaller for layer in layers(torch.compile(model))] == [False, True, True]


def test_overlap_of_known_zeros():
    one, two = nn.Linear(10, 10), nn.Linear(10, 10)
    with torch.no_grad():
        one.weight[:6] = 0  # 60 zeros, 20 of them shared
        two.weight[4:9] = 0
    found = overlap(one, two)
    assert found.jaccard == found.layers[0].jaccard == 20 / (60 + 50 - 20)
    assert found.by_chance == pytest.approx(30 / (60 + 50 - 30))
    assert found.kept == 10 / (40 + 50 - 10)
    assert found.kept_by_chance == pytest.approx(20 / (40 + 50 - 20))
    assert np.isnan(overlap(nn.Linear(3, 3), nn.Linear(3, 3)).jaccard)


def test_zeros_anywhere_overlap_by_chance():
    models = [nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 300)) for _ in range(2)]
    for model in models:
        for layer, share in zip(model, (0.9, 0.5), strict=True):
            layer.weight.data[torch.rand(300, 300) < share] = 0
    found = overlap(*models)
    assert found.jaccard == pytest.approx(found.by_chance, abs=0.01)
    assert found.kept == pytest.approx(found.kept_by_chance, abs=0.01)
    assert found.layers[1].by_chance == pytest.approx(1 / 3, abs=0.01)


def test_overlap_of_different_networks():
    with pytest.raises(ValueError, match=r"networks of one kind; they differ: 0.weight is \(4, 3\) and \(5, 3\)"):
        overlap(nn.Sequential(nn.Linear(3, 4)), nn.Sequential(nn.Linear(3, 5)))
    with pytest.raises(ValueError, match=r"1.weight is missing and \(2, 4\)"):
        overlap(nn.Sequential(nn.Linear(3, 4)), nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))


def test_spectra_are_numpys():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 5))
    batches = [torch.randn(n, 2, 6, 6) + 100 for n in (7, 1, 13)]
    conv, linear = spectrum(model, batches)
    with torch.no_grad():
        outputs = torch.cat([model[0](x) for x in batches]).double()
        scores = torch.cat([model(x) for x in batches]).double()
    for found, samples in ((conv, outputs.permute(0, 2, 3, 1).reshape(-1, 6)), (linear, scores)):
        values = np.linalg.eigvalsh(np.cov(samples.T.numpy()))[::-1]
        np.testing.assert_allclose(found.eigenvalues, values, rtol=1e-3, atol=1e-4 * values[0])
        assert found.samples == len(samples)
        assert found.cumulative[-1] == pytest.approx(1)
        shares = values / values.sum()
        assert found.effective_rank == pytest.approx(np.exp(-(shares * np.log(shares)).sum()), rel=1e-2)
    assert model.training


def test_a_low_rank_is_seen():
    layer = nn.Linear(20, 30)
    layer.weight.data = torch.randn(30, 3) @ torch.randn(3, 20)
    (found,) = spectrum(layer, [torch.randn(500, 20)])
    assert found.effective_rank <= 3
    assert found.cumulative[2] == pytest.approx(1, abs=1e-6)


def test_layers_of_other_kinds_and_modes_are_seen_and_left_as_they_were():
    model = nn.Sequential(nn.ConvTranspose2d(3, 16, 3), nn.BatchNorm2d(16), nn.Conv1d(1, 1, 1))[:2]
    model[1].eval()
    (found,) = spectrum(model, [torch.randn(4, 3, 9, 9)])
    assert (found.features, found.samples) == (16, 4 * 11 * 11)
    assert model.training
    assert not model[1].training
    with pytest.raises(ValueError, match="the outputs of 0 are not finite"):
        spectrum(model, [torch.full((4, 3, 9, 9), torch.nan)])


def test_one_pixel_of_each_image_and_too_few_of_them():
    model = nn.Sequential(nn.Conv2d(1, 8, 3))
    (found,) = spectrum(model, [torch.randn(5, 1, 9, 9)], positions="one")
    assert (found.samples, found.features) == (5, 8)
    assert found.note == "5 samples for 8 features: at most 4 directions can be seen"
    assert (found.eigenvalues[4:] < 1e-6).all()
    assert not spectrum(model, [torch.randn(5, 1, 9, 9)])[0].note
    with pytest.raises(ValueError, match="positions must be all or one; received 'two'"):
        spectrum(model, [], positions="two")
    with pytest.raises(ValueError, match="no layer was called"):
        spectrum(model, [])


def test_the_share_under_a_threshold_by_epoch():
    model, rows = nn.Linear(200, 200), []
    for scale in (1.0, 0.3, 0.1):
        model.weight.data = scale * torch.randn(200, 200)
        rows.append({"magnitudes": shares_under(model)})
    # 95.45 % of a normal distribution are within two standard deviations: here, in the end, 0.2.
    np.testing.assert_allclose(history(rows, 0.9545), [0.1585, 0.4950, 0.9545], atol=0.005)
    model.weight.data.zero_()
    zeros = {"magnitudes": shares_under(model)}
    np.testing.assert_allclose(history([*rows, zeros], 0.95), [0, 0, 0, 1], atol=1e-6)
    assert len(rows[0]["magnitudes"]) == len(MAGNITUDES)
    with pytest.raises(ValueError, match="trained by an older version"):
        history([{"epoch": 1}], 0.2)
    with pytest.raises(ValueError, match="not one epoch is done"):
        history([], 0.2)


def test_counts_beyond_what_float32_can_count():
    model = nn.Linear(5000, 5000)
    nn.init.constant_(model.weight, 0.05)
    shares = shares_under(model)
    assert shares[-1] == 1
    assert [shares[i] for i, edge in enumerate(MAGNITUDES) if edge < 0.049] == [0] * sum(
        edge < 0.049 for edge in MAGNITUDES
    )
