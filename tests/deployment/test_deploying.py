"""`deploy`: the same outputs, on engines that were measured, and dense where sparse has nothing to give."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import torch_halo as th
from torch_halo.deployment import deploying
from torch_halo.deployment.attention import Attention
from torch_halo.deployment.comparison import difference
from torch_halo.deployment.layers import CsrLinear, NumbaChain, NumbaConv2d, NumbaLinear
from torch_halo.deployment.timing import medians
from torch_halo.models import MODELS

SPARSE = (CsrLinear, NumbaLinear, NumbaConv2d, NumbaChain)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Few rounds: which engine wins does not matter here."""
    monkeypatch.setattr(deploying, "medians", lambda functions, **_: medians(functions, rounds=1))


def engines_in(model):
    return {type(module) for module in model.modules()} & set(SPARSE)


def pruned(name, level=0.95):
    torch.manual_seed(0)
    shape = (3, 32, 32) if name in ("vgg16", "resnet") else (1, 28, 28)
    options = {"vgg16": {"width": 0.25}, "resnet": {"depth": 20}}.get(name, {})
    model = MODELS[name](shape, 10, **options).eval()
    th.prune_(model, sparsity=level, scope="layer")
    return model, shape


@pytest.mark.parametrize("engine", list(deploying.ENGINES))
@pytest.mark.parametrize("name", list(MODELS))
def test_the_networks(name, engine):
    model, shape = pruned(name)
    before = copy.deepcopy(model.state_dict())
    fast, times = th.deploy(model, torch.randn(4, *shape), engine)
    with torch.no_grad():
        for batch in (1, 4, 33):
            x = torch.randn(batch, *shape)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-3, atol=1e-4)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    expected = {"dense": set(), "csr": {CsrLinear}, "numba": {NumbaLinear, NumbaConv2d, NumbaChain}}
    if engine in expected:
        assert engines_in(fast) <= expected[engine]
        assert bool(engines_in(fast)) == (engine != "dense")
    assert [row[0] for row in times.rows()][-1] == "all"
    if engine == "auto":
        assert times.now <= times.dense
    assert times.times == times.dense / times.now


def test_batch_norm_is_folded_and_dead_channels_go():
    model, shape = pruned("vgg16")
    with torch.no_grad():
        model.features[0].weight[:8] = 0
    fast, times = th.deploy(model, torch.randn(2, *shape), "dense")
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fast.modules())
    assert times.parameters[1] < times.parameters[0]


def test_relus_are_done_on_the_way():
    model, shape = pruned("vgg16")
    fast, _ = th.deploy(model, torch.randn(2, *shape), "numba")
    ours = [module for module in fast.modules() if isinstance(module, NumbaConv2d)]
    assert ours
    assert all(module.has_relu for module in ours)
    x = torch.full((1, *shape), float("nan"))
    with torch.no_grad():
        assert fast(x).isnan().all() == model(x).isnan().all()


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masked", [False, True])
def test_an_encoder_with_its_fast_path(batch_first, masked):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=batch_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    th.prune_(model, sparsity=0.95, scope="layer")
    x = torch.randn(3, 7, 64) if batch_first else torch.randn(7, 3, 64)
    padding = torch.zeros(3, 7, dtype=torch.bool)
    padding[1, 5:] = True
    inputs = (x, None, padding) if masked else (x,)
    fast, times = th.deploy(model, inputs, "numba")
    assert NumbaLinear in engines_in(fast)
    with torch.no_grad():
        found, wanted = fast(*inputs), model(*inputs)
    keep = ~padding if batch_first else ~padding.t()
    torch.testing.assert_close(found[keep], wanted[keep], rtol=1e-4, atol=1e-5)
    assert any(row[0] == "layers.0.self_attn.q_proj" for row in times.rows())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_that_nests_its_padding_stays():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2).eval()
    th.prune_(model, sparsity=0.95, scope="layer")
    padding = torch.zeros(3, 7, dtype=torch.bool)
    padding[:, 5:] = True  # there it returns zeros, or nothing at all
    fast, times = th.deploy(model, (torch.randn(3, 7, 64), None, padding), "csr")
    assert not engines_in(fast)
    assert "not with engines: the outputs would differ by" in str(times)


ATTENTIONS = [{}, {"bias": False}, {"kdim": 12, "vdim": 20}, {"batch_first": True}]
MASKS = {
    "none": {},
    "bool": {"attn_mask": torch.ones(5, 6).triu(2).bool()},
    "float": {"attn_mask": torch.ones(5, 6)},
    "by head": {"attn_mask": torch.rand(3 * 4, 5, 6)},
    "padding": {"key_padding_mask": torch.tensor([[0, 0, 0, 0, 1, 1]] * 3).bool()},
    "both": {"attn_mask": torch.rand(5, 6), "key_padding_mask": torch.tensor([[0.0, 0, 0, 0, -9, 1]] * 3)},
}


@pytest.mark.parametrize("settings", ATTENTIONS, ids=str)
@pytest.mark.parametrize("mask", list(MASKS))
@pytest.mark.parametrize("weights", [{"need_weights": False}, {}, {"average_attn_weights": False}], ids=str)
def test_attention_is_torchs(settings, mask, weights):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(16, 4, **settings).eval()
    if attention.in_proj_bias is not None:
        nn.init.normal_(attention.in_proj_bias)
    query, key, value = torch.randn(5, 3, 16), torch.randn(6, 3, settings.get("kdim", 16)), None
    value = torch.randn(6, 3, settings.get("vdim", 16))
    if settings.get("batch_first"):
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    with torch.no_grad():
        wanted = attention(query, key, value, **MASKS[mask], **weights)
        found = Attention(attention)(query, key, value, **MASKS[mask], **weights)
    torch.testing.assert_close(found[0], wanted[0])
    if wanted[1] is None:
        assert found[1] is None
    else:
        torch.testing.assert_close(found[1], wanted[1])


def test_attention_of_one_sequence():
    attention = nn.MultiheadAttention(16, 4).eval()
    x = torch.randn(5, 16)
    with torch.no_grad():
        for found, wanted in zip(Attention(attention)(x, x, x), attention(x, x, x), strict=True):
            torch.testing.assert_close(found, wanted)
    with pytest.raises(RuntimeError, match="is_causal is a hint about attn_mask, which is missing"):
        Attention(attention)(x, x, x, is_causal=True)


def test_attention_that_cannot_be_split_stays():
    model = nn.MultiheadAttention(16, 4, add_zero_attn=True, batch_first=True).eval()
    th.prune_(model, sparsity=0.95, scope="layer")
    x = torch.randn(2, 5, 16)
    fast, _ = th.deploy(model, (x, x, x), "numba")
    assert isinstance(fast, nn.MultiheadAttention)


@pytest.mark.parametrize("is_shared", [False, True])
def test_layers_that_follow_each_other_are_one(is_shared, monkeypatch):
    fast = ("numba", "with engines")  # on a busy machine they may not be
    monkeypatch.setattr(deploying, "medians", lambda functions, **_: {k: 2.0 - (k in fast) for k in functions})
    relu = nn.ReLU()
    relus = [relu, relu] if is_shared else [nn.ReLU(), nn.ReLU()]
    layers = [nn.Linear(256, 256) for _ in range(3)]
    parts = [nn.Dropout(), nn.Flatten(), layers[0], relus[0], layers[1], relus[1], layers[2], nn.Softmax(1)]
    model, x = nn.Sequential(*parts).eval(), torch.randn(1, 4, 64)
    th.prune_(model, sparsity=0.98)
    fast, times = th.deploy(model, x)
    with torch.no_grad():
        for each in (x, torch.randn(9, 4, 64)):
            torch.testing.assert_close(fast(each), model(each), rtol=1e-4, atol=1e-6)
    assert list(fast._modules) == ["0", "1", "7"]
    assert [layer.name for layer in times.layers] == ["2 to 6"]


@pytest.mark.parametrize("name", ["Bert", "GPT2"])
def test_transformers(name):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if name == "Bert":
        config = transformers.BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                                         intermediate_size=64)  # fmt: skip
        model = transformers.BertModel(config).eval()
    else:
        model = transformers.GPT2Model(transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=2)).eval()
    th.prune_(model, sparsity=0.95, scope="layer")
    tokens = torch.randint(50, (2, 9))
    fast, _ = th.deploy(model, tokens, "csr")
    assert CsrLinear in engines_in(fast)
    with torch.no_grad():
        torch.testing.assert_close(
            fast(tokens).last_hidden_state, model(tokens).last_hidden_state, rtol=1e-3, atol=1e-4
        )


def test_a_model_that_is_not_sparse():
    model = MODELS["lenet-5"]((1, 28, 28), 10)
    fast, times = th.deploy(model, torch.randn(4, 1, 28, 28))
    assert not engines_in(fast)
    assert "no layer has 60% zeros (the most is 0.0%): prune it first" in str(times)


def test_without_numba(monkeypatch):
    monkeypatch.setattr(deploying, "has_numba", lambda: False)
    model, shape = pruned("lenet-5-caffe")
    fast, times = th.deploy(model, torch.randn(4, *shape))
    assert engines_in(fast) <= {CsrLinear}
    assert "numba is not installed (pip install 'torch-halo[numba]'): convolutions stay dense" in str(times)
    with pytest.raises(ImportError, match=r"pip install 'torch-halo\[numba\]'"):
        th.deploy(model, torch.randn(4, *shape), "numba")


def test_what_is_slower_comes_back_without_engines(monkeypatch):
    model, shape = pruned("lenet-300-100")
    x = torch.randn(4, *shape)
    slow = {"dense": 1.0, "csr": 0.1, "numba": 0.2, "one by one": 0.1}
    slow |= {"with engines": 2.0, "without engines": 1.5, "as it was": 1.0}
    monkeypatch.setattr(deploying, "medians", lambda functions, **_: {name: slow[name] for name in functions})
    fast, times = th.deploy(model, x)
    assert not engines_in(fast)
    assert times.now == times.dense == 1.0
    assert times.parameters == (266_610, 266_610)
    assert times.notes == ("with engines it took 2000.000 ms as a whole, which is slower: deployed as it was",)
    slow["without engines"] = 0.9
    fast, times = th.deploy(model, x)
    assert not engines_in(fast)
    assert times.parameters[1] < 266_610
    slow["with engines"] = 0.5
    fast, times = th.deploy(model, x)
    assert engines_in(fast) == {CsrLinear}
    assert times.times == 2.0


def sparse_net(*, middle=None, width=64):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(width, width), middle or nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)
    )
    th.prune_(model, sparsity=0.95, scope="layer")
    return model.eval()


class Clip(nn.ReLU):
    def forward(self, x):
        return x.clamp(0, 6)


class ByHand(nn.Module):
    """Runs a Sequential's children itself."""

    def __init__(self):
        super().__init__()
        self.net = sparse_net()

    def forward(self, x):
        for i in range(5 if float(x.mean()) < 10 else 2):
            x = self.net[i](x)
        return x


class Looking(nn.Module):
    """Looks at its layers' attributes."""

    def __init__(self):
        super().__init__()
        self.fc = sparse_net()[0]

    def forward(self, x):
        x = x.to(self.fc.weight.dtype).to(next(self.fc.parameters()).device)
        return self.fc(x) * self.fc.out_features + self.fc.weight.sum()


def hooked():
    model = sparse_net()
    model[0].register_forward_hook(lambda module, args, found: found.clamp(-5, 5))
    return model


def parametrized():
    model = sparse_net()
    nn.utils.parametrize.register_parametrization(model[0], "weight", nn.Hardtanh())
    return model


ODD = {
    "a ReLU that is none": lambda: sparse_net(middle=Clip()),
    "children run by hand": ByHand,
    "attributes looked at": Looking,
    "a hook": hooked,
    "a parametrization": parametrized,
    "in place on the input": lambda: nn.Sequential(nn.ReLU(inplace=True), *sparse_net()),
}


@pytest.mark.parametrize("engine", ["auto", "csr", "numba"])
@pytest.mark.parametrize("name", list(ODD))
def test_odd_models_stay_what_they_are(name, engine):
    model, x = ODD[name]().eval(), torch.randn(16, 64)
    before = x.clone()
    fast, _ = th.deploy(model, x, engine)
    assert torch.equal(x, before)
    with torch.no_grad():
        for other in (x, 1000 * x, x + 100, -x[:3]):
            torch.testing.assert_close(fast(other.clone()), model(other.clone()), rtol=1e-3, atol=1e-3)


def test_script_modules_are_refused():
    with pytest.raises(TypeError, match="the model is TorchScript"):
        th.deploy(torch.jit.ScriptModule(), torch.randn(2))


def test_masks_of_torch_must_be_made_permanent():
    model = sparse_net()
    prune.l1_unstructured(model[0], "weight", 0.9)
    model(torch.randn(2, 64))
    with pytest.raises(ValueError, match=r"made permanent first, by prune\.remove\(module, 'weight'\)"):
        th.deploy(model, torch.randn(2, 64))


def test_two_threads_at_once():
    model, shape = pruned("lenet-5-caffe")
    fast, _ = th.deploy(model[:4], torch.randn(2, *shape), "numba")
    inputs = [torch.randn(2, 1, size, size + 3) for size in range(16, 40)]
    with ThreadPoolExecutor(4) as pool, torch.no_grad():
        for _ in range(3):
            for x, found in zip(inputs, pool.map(fast, inputs), strict=True):
                torch.testing.assert_close(found, model[:4](x), rtol=1e-4, atol=1e-4)


def test_a_deployed_model_is_not_exported():
    fast, _ = th.deploy(sparse_net(), torch.randn(64, 64), "numba")
    with pytest.raises(RuntimeError, match="export the model before deploying it"):
        torch.export.export(fast, (torch.randn(2, 64),))


@pytest.mark.parametrize(
    ("found", "wanted", "is_same"),
    [
        ([1.0, 2.0], [1.0, 2.0 + 1e-5], True),
        ([1.0, 2.0], [1.0, 2.1], False),
        ([1.0, float("-inf")], [1.0, float("-inf")], True),
        ([5.0, float("-inf")], [1.0, float("-inf")], False),
        ([5.0, float("inf")], [1.0, 1.0], False),
        ([float("nan"), 1.0], [float("nan"), 1.0], True),
        ([float("nan"), 1.0], [1.0, 1.0], False),
    ],
)
def test_differences(found, wanted, is_same):
    large = torch.tensor([1e6])  # another output, which must not excuse this one
    assert difference([large, torch.tensor(found)], [large, torch.tensor(wanted)]).too_large != is_same


def test_differences_in_kind():
    x = torch.ones(2)
    for other in (x.double(), x[:1], torch.ones(2, dtype=torch.int64)):
        assert difference([x], [other]).too_large
    assert not difference([x.long()], [x.long()]).too_large


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_stay_dense(dtype):
    model, shape = pruned("lenet-300-100")
    fast, _ = th.deploy(model.to(dtype), torch.randn(4, *shape, dtype=dtype))
    assert not engines_in(fast)


def test_a_model_in_training_is_deployed_for_evaluation():
    model = nn.Sequential(nn.Linear(100, 100), nn.Dropout(0.5), nn.Linear(100, 10)).train()
    th.prune_(model, sparsity=0.95, scope="layer")
    fast, _ = th.deploy(model, torch.randn(64, 100))
    assert model.training
    assert not fast.training
    x = torch.randn(3, 100)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model.eval()(x), rtol=1e-4, atol=1e-5)


def test_inputs_that_do_not_fit():
    model, shape = pruned("lenet-300-100")
    fast, _ = th.deploy(model, torch.randn(64, *shape), "numba")
    with pytest.raises(ValueError, match=r"this layer reads 784 channels .* received \(2, 900\)"):
        fast(torch.randn(2, 1, 30, 30))
    with pytest.raises(ValueError, match="unknown engine 'cuda'; known: auto, dense, csr, numba"):
        th.deploy(model, torch.randn(2, *shape), "cuda")
