import pytest
import torch
from torch import nn

import torch_halo as th
from torch_halo.selection import select_weights


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 4, 2))
        self.attention = nn.MultiheadAttention(4, 2)
        self.cross = nn.MultiheadAttention(4, 2, kdim=3, vdim=5)
        self.norm = nn.LayerNorm(4)
        self.classifier = nn.Linear(4, 7)


def names(select=None, model=None, **options):
    return [weight.name for weight in select_weights(model or Net(), select, **options)]


DEFAULT = [
    "features.0.weight",
    "features.2.weight",
    "attention.in_proj_weight",
    "attention.out_proj.weight",
    "cross.q_proj_weight",
    "cross.k_proj_weight",
    "cross.v_proj_weight",
    "cross.out_proj.weight",
    "classifier.weight",
]


def test_default_takes_convolutions_linears_and_attention():
    assert names() == DEFAULT


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        ("!classifier", DEFAULT[:-1]),
        ("features", DEFAULT[:2]),
        ("features.*", DEFAULT[:2]),
        ("*.weight", [DEFAULT[0], DEFAULT[1], DEFAULT[3], DEFAULT[7], DEFAULT[8]]),
        (["features", "!features.0"], DEFAULT[1:2]),
        (["features", "classifier"], [*DEFAULT[:2], DEFAULT[-1]]),
        (nn.Conv2d, DEFAULT[:1]),
        ((nn.Conv2d, nn.Linear), [DEFAULT[0], DEFAULT[3], DEFAULT[7], DEFAULT[8]]),
        (nn.Embedding, ["embed.weight"]),
        (lambda name, p: p.ndim == 1 and name.startswith("norm"), ["norm.weight", "norm.bias"]),
    ],
)
def test_other_selections(select, expected):
    assert names(select) == expected


def test_everything_takes_the_same_selection():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert list(th.Shrinkage(model, th.HALO(0.1), optimizer, select="!1").coefficients) == ["0.weight"]
    assert list(th.prune_(model, sparsity=0.5, select="!1")) == ["0.weight"]
    assert th.sparsity(model, select="!1").sparsity == 0.5
    assert th.sparsity(model).sparsity == 0.25


def test_a_weight_tied_to_an_embedding_is_left_alone():
    model = Net()
    model.classifier = nn.Linear(4, 7, bias=False)
    model.classifier.weight = model.embed.weight
    assert "classifier.weight" not in names(model=model)


def test_tied_weights_count_once_under_their_first_name():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    assert names(model=model) == ["0.weight", "1.weight"]


def test_frozen_weights_are_left_out_unless_measured():
    model = Net()
    model.features.requires_grad_(False)
    assert names(model=model) == DEFAULT[2:]
    assert names(model=model, frozen=True) == DEFAULT
    with pytest.raises(ValueError, match="all 9 selected weights are frozen"):
        th.prune_(model.requires_grad_(False), sparsity=0.5)
    assert th.sparsity(model).sparsity == 0.0


def test_transformers_conv1d_is_read_with_its_axes():
    from transformers.pytorch_utils import Conv1D

    (weight,) = select_weights(nn.Sequential(Conv1D(5, 3)))
    assert weight.name == "0.weight"
    assert weight.axes.out == 1


@pytest.mark.parametrize(
    ("model", "select", "message"),
    [
        (Net(), "clasifier", r"'clasifier' matches no weight; there are: features\.0\.weight, "),
        (Net(), ["features", "!hed"], r"'hed' matches no weight; there are: "),
        (Net(), nn.Conv3d, r"matches no weight; the model's parameters: embed\.weight, features\.0\.weight"),
        (Net(), lambda name, p: False, r"matches no weight; the model's parameters: embed\.weight"),
        (nn.ReLU(), None, r"matches no weight; the model's parameters: none"),
        (nn.LazyLinear(3), None, r"weight is a lazy parameter, not yet initialised"),
        (nn.Linear(2, 2, device="meta"), None, r"weight is on the meta device"),
        (nn.Linear(2, 2, dtype=torch.complex64), None, r"weight is of torch\.complex64; allowed: float16, bfloat16"),
    ],
)
def test_bad_selections(model, select, message):
    for action in (lambda: th.prune_(model, sparsity=0.5, select=select), lambda: th.sparsity(model, select=select)):
        with pytest.raises(ValueError, match=message):
            action()


def test_integer_and_sparse_weights_are_refused():
    integer = nn.Linear(2, 2)
    integer.weight = nn.Parameter(torch.ones(2, 2, dtype=torch.int8), requires_grad=False)
    with pytest.raises(ValueError, match=r"weight is of torch\.int8"):
        th.sparsity(integer)
    sparse = nn.Linear(2, 2)
    sparse.weight = nn.Parameter(torch.eye(2).to_sparse())
    with pytest.raises(ValueError, match=r"weight has layout torch\.sparse_coo; only dense"):
        th.prune_(sparse, sparsity=0.5)


@pytest.mark.parametrize("select", [3, [], [nn.Linear, "features"], int, nn.Linear(2, 2)])
def test_a_selection_of_another_kind(select):
    with pytest.raises(TypeError, match="select must be None, name patterns, module types or a callable"):
        names(select)
