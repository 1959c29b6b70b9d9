import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import torch_halo as th
from torch_halo.models import MODELS, load_weights

# input shape, classes, options, parameters
MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
COUNTS = {
    "lenet-300-100": [(MNIST, 10, {}, 266_610)],
    "lenet-5": [(MNIST, 10, {}, 61_706)],
    "lenet-5-caffe": [(MNIST, 10, {}, 431_080)],
    "vgg16": [(CIFAR, 10, {}, 14_728_266), (CIFAR, 100, {}, 14_774_436)],
    "resnet": [(CIFAR, 10, {"depth": 50}, 758_554), (CIFAR, 100, {"depth": 50}, 764_404)],
}


def test_every_model_is_counted():
    assert list(COUNTS) == list(MODELS)


@pytest.mark.parametrize(("name", "case"), [(name, case) for name, cases in COUNTS.items() for case in cases])
def test_parameters_output_and_pruning(name, case):
    shape, classes, options, count = case
    model = MODELS[name](shape, classes, **options)
    assert sum(p.numel() for p in model.parameters()) == count
    assert model(torch.zeros(2, *shape)).shape == (2, classes)
    assert th.prune_(model, sparsity=0.5, allow_empty=True).sparsity == pytest.approx(0.5, abs=1e-4)


@pytest.mark.parametrize("name", ["lenet-5", "lenet-5-caffe"])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 20), (1, 16, 16)])
def test_lenets_take_other_images(name, shape):
    assert MODELS[name](shape, 7)(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("depth", [20, 32, 50, 56])
def test_resnets_depth_counts_its_layers(depth):
    model = MODELS["resnet"](CIFAR, 10, depth=depth)
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(convolutions) + 1 == depth


def test_initial_values_are_the_papers():
    vgg = MODELS["vgg16"](CIFAR, 10)
    assert float(vgg.features[3].weight.detach().std()) == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.02)
    assert float(vgg.classifier.weight.detach().std()) == pytest.approx(0.01, rel=0.05)
    resnet = MODELS["resnet"](CIFAR, 10)
    assert float(resnet.layer3[1].conv2.weight.detach().std()) == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.03)
    assert MODELS["vgg16"](CIFAR, 10, width=0.25).features[0].out_channels == 16


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MODELS["lenet"], "unknown model 'lenet'; known: lenet-300-100, lenet-5"),
        (lambda: MODELS["resnet"](CIFAR, 10, depth=18), "depth must be one of 20, 32, 50, 56; received 18"),
        (lambda: MODELS["vgg16"](MNIST, 10), "vgg16 needs images of 32×32"),
        (lambda: MODELS["vgg16"](CIFAR, 10, width=0), "width must be a finite number above 0"),
        (lambda: MODELS["lenet-5"]((8, 8), 10), r"lenet-5 needs images .* at least 12×12 pixels; received \(8, 8\)"),
        (lambda: MODELS["lenet-5-caffe"]((1, 8, 8), 10), "at least 16×16 pixels"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def resnet():
    return MODELS["resnet"](CIFAR, 10, depth=20)


@pytest.mark.parametrize("form", ["safetensors", "state dict", "checkpoint", "data parallel"])
def test_weights_load_in_the_usual_forms(form, tmp_path):
    source, path = resnet(), tmp_path / "weights.pt"
    state = source.state_dict()
    if form == "safetensors":
        path = tmp_path / "weights.safetensors"
        save_file(state, path)
    elif form == "state dict":
        torch.save(state, path)
    elif form == "checkpoint":
        torch.save({"epoch": 3, "state_dict": state}, path)
    else:
        torch.save({f"module.{name}": value for name, value in state.items()}, path)
    torch.manual_seed(1)
    loaded = load_weights(resnet(), path)
    torch.testing.assert_close(loaded.state_dict(), state, rtol=0, atol=0)
    names = set(state)
    assert {"conv1.weight", "bn1.bias", "layer2.0.downsample.0.weight", "fc.bias"} < names


class Hostile:
    def __reduce__(self):
        return exec, ("raise SystemExit('executed')",)


def test_a_hostile_pickle_is_not_executed(tmp_path):
    path = tmp_path / "weights.pt"
    torch.save({"state_dict": Hostile()}, path)
    with pytest.raises(ValueError, match=r"weights\.pt: expected a file of weights; found a damaged or unsafe one"):
        load_weights(resnet(), path)


def test_files_that_are_damaged_or_missing_are_named(tmp_path):
    torch.save(resnet().state_dict(), tmp_path / "cut.pt")
    save_file(resnet().state_dict(), tmp_path / "cut.safetensors")
    for name in ("cut.pt", "cut.safetensors"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[: len(content) // 2])
        with pytest.raises(ValueError, match=rf"{name}: expected a"):
            load_weights(resnet(), tmp_path / name)
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(ValueError, match=r"text\.pt: expected a file of weights"):
        load_weights(resnet(), tmp_path / "text.pt")
    with pytest.raises(FileNotFoundError, match=r"missing\.pt: no such file"):
        load_weights(resnet(), tmp_path / "missing.pt")


def test_old_files_have_no_batch_counts_and_a_model_may_have_a_module(tmp_path):
    state = {n: v for n, v in resnet().state_dict().items() if not n.endswith("num_batches_tracked")}
    torch.save(state, tmp_path / "old.pt")
    assert torch.equal(load_weights(resnet(), tmp_path / "old.pt").fc.weight, state["fc.weight"])
    model = nn.ModuleDict({"module": nn.Linear(2, 2)})
    torch.save(model.state_dict(), tmp_path / "own.pt")
    load_weights(nn.ModuleDict({"module": nn.Linear(2, 2)}), tmp_path / "own.pt")


def test_weights_that_do_not_fit_change_nothing(tmp_path):
    model = resnet()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    wrong = dict(before)
    wrong["fc.weight"] = torch.zeros(100, 64)
    torch.save(wrong, tmp_path / "shape.pt")
    with pytest.raises(ValueError, match=r"fc\.weight has shape \(100, 64\), not \(10, 64\)"):
        load_weights(model, tmp_path / "shape.pt")
    torch.save(
        {**{n: v for n, v in before.items() if n != "fc.bias"}, "head.bias": torch.zeros(1)}, tmp_path / "names.pt"
    )
    with pytest.raises(ValueError, match=r"it lacks fc\.bias; it has besides head\.bias"):
        load_weights(model, tmp_path / "names.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ValueError, match=r"list\.pt holds no weights"):
        load_weights(model, tmp_path / "list.pt")
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
